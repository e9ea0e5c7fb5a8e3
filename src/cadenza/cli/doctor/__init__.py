"""`cadenza doctor`: one file for each part of an installation that it checks."""
