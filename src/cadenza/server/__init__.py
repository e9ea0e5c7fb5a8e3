"""The processes that serve: the listening socket, drain and reload by signal, and several workers."""
