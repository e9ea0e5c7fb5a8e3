"""Files and web pages to text, text to passages, and the passages that fit a question.

The service calls `reader`. The parsers run in a sandboxed child process (`child`, `formats/`), because they meet
hostile files. Everything stays in memory. This package knows no accounts, no money and no models.
"""
