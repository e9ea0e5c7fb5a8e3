"""The processes that serve: the listening socket, shutdown and reload by signal, and several workers."""
