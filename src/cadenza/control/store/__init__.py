"""Maintenance of the store: preparing it, checking that it takes writes, backups, and moving it."""
