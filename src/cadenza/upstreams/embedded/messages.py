"""The messages between the embedded upstream and its child process. Here, so that only the child loads llama.cpp."""

import msgspec


class Start(msgspec.Struct, frozen=True):
    """The first line of the child's standard input: the model to run, and how."""

    model_path: str
    api_key: str
    slots: int
    context_tokens: int  # of each slot
    output_tokens: int  # of a reply whose request sets no limit
    threads: int


class Ready(msgspec.Struct, frozen=True):
    """The only line on the child's standard output: its server listens at this address."""

    url: str
    knows_tools: bool  # the model's chat template has a form for tools
