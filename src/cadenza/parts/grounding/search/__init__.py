"""Automatic web search: `intent/` decides whether a message needs it and writes the query, `engines/` find results,
`pages/` fetches pages, and `finder` joins them. Queries and results are content: in memory only, for minutes at most.
"""
