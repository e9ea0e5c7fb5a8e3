"""The Markdown of replies: split into blocks as it arrives, rendered to clean HTML by a child process."""
