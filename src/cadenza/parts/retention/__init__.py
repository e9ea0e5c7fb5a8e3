"""The retention audit: it shows on an installation that no message content stays anywhere."""
