"""HTTP/1.1 both ways, on asyncio and httptools. Knows nothing of keys, money or models."""
