"""Cadenza: a hosted chat-completion service that anyone can run."""
