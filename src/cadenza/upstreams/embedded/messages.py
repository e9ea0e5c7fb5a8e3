"""What the embedded upstream and its child process say to each other; here, so that only the child loads llama.cpp."""

import msgspec

OUTPUT_TOKENS = 1024  # of a reply whose request sets no limit of its own


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
