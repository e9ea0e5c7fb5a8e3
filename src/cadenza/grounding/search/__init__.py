"""Automatic web search: `intent/` says whether a message needs it and what to ask, `engines/` finds results, `pages/`
reads pages, and `finder` puts them together. Queries and results are content: memory only, for minutes at most.
"""
