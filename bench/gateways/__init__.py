"""The gateways that are measured, one module each (or one for two of a kind)."""
