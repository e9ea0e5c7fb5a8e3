"""Pure rules and records: no I/O, no framework, no clock."""
