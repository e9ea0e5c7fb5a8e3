"""The gateways to measure, one module for each kind."""
