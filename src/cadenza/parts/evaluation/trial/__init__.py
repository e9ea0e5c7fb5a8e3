"""A trial of a provider's model with about ten tiny requests: what it does, and which settings it needs."""
