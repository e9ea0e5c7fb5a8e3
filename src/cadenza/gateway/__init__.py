"""The data plane: the API under /v1. `chat.serve_chat` tells the story of one chat request."""
