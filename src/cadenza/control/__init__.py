"""The control plane: what account owners and operators may do."""
