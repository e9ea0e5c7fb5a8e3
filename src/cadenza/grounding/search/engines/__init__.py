"""Search engines behind one interface, `base.Engine`, with a file for each: SearXNG, Brave, Tavily, the local index.

`web` has what the engines on the web share: an engine's answer is hostile input, so it is bounded, checked and cleaned.
`guard` is the circuit breaker and the log of an engine, and `build` makes and probes the engine that the config names.
To add an engine on the web, write a `WebEngine` and add it to `build.WEB_ENGINES`. Queries are content: no exception,
log line or metric has one.
"""
