"""The bytes of a file or web page to text. It runs in the sandboxed child only, because it meets hostile files.

`read` has the table of formats. Every reader is pure, and bounded by its `ReadBudget`; nothing in a file is executed,
fetched or resolved. A file that cannot be read raises `Unreadable` with a reason that never quotes it.
"""
