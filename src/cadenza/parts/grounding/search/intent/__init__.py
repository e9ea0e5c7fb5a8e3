"""What a message wants of the web: `decision` says whether it needs a search, `query` what to search for. Pure."""
