"""The control plane: what an account owner and the operator may do."""
