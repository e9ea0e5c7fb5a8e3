"""The bytes of a file or web page to text. It runs in the confined child only, because it meets hostile files.

`read` is the face. Every reader is pure and bounded by `FormatLimits`; nothing in a file is executed, fetched or
resolved. A file that cannot be read raises `Unreadable` with a reason that never quotes it.
"""
