"""What a message wants of the web: `decision` says whether it needs it, `query` what to ask. Pure."""
