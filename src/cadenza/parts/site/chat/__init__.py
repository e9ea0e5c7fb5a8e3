"""The chat page: its stream, and the Markdown of replies."""
