"""One file per step of the schema since release 0.1.0, written by hand and never changed once released."""
