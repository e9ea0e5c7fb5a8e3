"""Which upstream answers a request: classes and their routes, dispatch, health, and continuing a broken stream."""
