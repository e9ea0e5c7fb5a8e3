"""What an operator may see and do."""
