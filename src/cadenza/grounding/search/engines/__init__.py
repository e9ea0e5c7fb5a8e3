"""Search engines behind one interface, `base.Engine`: those on the web, and the local index.

`web` asks an engine on the web: its answer is hostile input, so it is bounded, checked and cleaned. `apis` is the table
of these engines; to add one, add it there. `guard` is the circuit breaker and the log of an engine, and `build` makes
and probes the engine that the config names. Queries are content: no exception, log line or metric has one.
"""
