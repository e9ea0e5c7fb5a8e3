"""Pages of an account: sign-in and sign-up, security, preferences, memory, keys."""
