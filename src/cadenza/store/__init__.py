"""State: the only folder with SQL in it."""
