"""Search engines behind one protocol (`base.Engine`): SearXNG, Brave and Tavily over HTTP.

`build` makes the engine that the config names, `resting` spares requests the wait for an engine that fails, and `probe`
says what is wrong with one. What an engine answers is hostile input: it is bounded, checked and cleaned (`endpoint`,
`results`). Queries are content: no exception, log line or metric has one.
"""
