"""Search engines of the web behind one interface, `base.Engine`.

`web` asks an engine: its answer is hostile input, so it is bounded, checked and cleaned. `apis` is the table
of these engines; to add one, add it there. `guard` is the circuit breaker and the log of an engine, and `build` makes
and probes the engine that the config names. Queries are content: no exception, log line or metric has one.
"""
