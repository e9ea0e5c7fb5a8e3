"""Pages of an account: sign-in, security, preferences, keys."""
