"""The embedded model: SmolLM2, or any GGUF file, on llama.cpp in a child process on this machine.

Here are the messages between this process and the child: only the child loads llama.cpp.
"""

import msgspec

from cadenza.core.content import Content


class Start(Content, msgspec.Struct, frozen=True):
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
