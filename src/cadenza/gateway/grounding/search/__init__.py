"""Automatic web search: `decision` says whether a message needs it, `query` what to ask, `engines/` finds results,
`fetch` reads pages, and `search` puts them together. Queries and results are content: memory only, for minutes at most.
"""
