"""One file per step of the schema, written by hand and never changed once released."""
