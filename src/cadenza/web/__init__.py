"""Pages for people, over the control plane."""
