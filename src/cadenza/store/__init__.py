"""State: the only SQL there is."""
