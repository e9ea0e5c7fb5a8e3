"""Rows, by table: the statements of accounts, keys, sessions, usage and the like."""
