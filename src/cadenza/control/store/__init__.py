"""The care of the store: preparing it, backups, moving it, and checking that it can be written."""
