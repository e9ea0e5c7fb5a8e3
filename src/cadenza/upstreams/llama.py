"""What the embedded upstream and its child process say to each other; here, so that only the child loads llama.cpp."""

import msgspec


class Order(msgspec.Struct, frozen=True):
    """What the parent wants run."""

    model_path: str
    api_key: str
    slots: int
    context_tokens: int
    threads: int


class Ready(msgspec.Struct, frozen=True):
    """The one line that the child prints: where its server listens."""

    url: str
    knows_tools: bool
