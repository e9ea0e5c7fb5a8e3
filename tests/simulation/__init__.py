"""A deterministic simulation of ledger and fleet: one seed is one run. See docs/money.md."""
