"""What commands share, also those of parts: options, output, the config and the store, and groups of commands."""
