"""cadenza top: what the service does now, in a terminal. It reads /metrics and /readyz of one or many processes."""
