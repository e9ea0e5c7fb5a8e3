"""Cadenza: a chat-completion service that you run yourself."""
