"""The pages below /docs, and /openapi.json."""
