"""The parsers of file formats. They run only in the confined child process."""
