"""The local search index: folders of files, the full-text index, and the command that fills it."""
