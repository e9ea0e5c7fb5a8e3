"""Authentication: sign-up, passwords, second factors, passkeys, sessions, one-time links."""
