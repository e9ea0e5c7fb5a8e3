"""Files and web pages to text, text to passages, and the passages that fit a question.

`reader` is the face for the service: the parsers run in a confined child process (`child`, `formats/`), because they
meet hostile files. Everything stays in memory. A room like http: it knows no accounts, no money and no models.
"""
