"""The way out: one file per kind of provider, all behind one protocol."""
