"""A real SearXNG on this machine, whose only engine is a loopback server of the test."""
