"""The data plane: the API under /v1, its files in the order in which a request meets them."""
