"""What the owner of an account may change of it: preferences, memory notes, erasure."""
