"""Accounts, and what their owners change of them: preferences, memory notes, erasure."""
