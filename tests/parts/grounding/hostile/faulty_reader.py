"""The child that reads documents, with a tokenizer that fails as its text says: "ValueError", then a secret.

It is confined as the real one. It stands for any parser that raises what nobody foresaw.
"""

import builtins
import os
import signal

from cadenza.children.confine import confine, enter_sandbox, read_limits, serve_tasks
from cadenza.core.tokens import Tokenizer
from cadenza.parts.grounding.files.child import prepare, serve_task
from cadenza.parts.grounding.files.messages import TASKS


class StrangeError(Exception):
    """An exception of a library."""


class FailingTokenizer(Tokenizer):
    """Raises the error that the text begins with."""

    def count(self, text: str) -> int:
        name = text.partition(" ")[0]
        if name == "exit":
            os._exit(1)
        if name == "crash":
            signal.raise_signal(signal.SIGSEGV)
        if name == "StrangeError":
            raise StrangeError(text)
        error = getattr(builtins, name, None)
        if error is not None:
            raise error(text)
        return len(text)


def main() -> None:
    limits = read_limits()
    confine(limits)
    prepare(limits)
    enter_sandbox()
    tokenizer = FailingTokenizer()
    serve_tasks(lambda head, body: serve_task(TASKS.decode(head), body, tokenizer))


if __name__ == "__main__":
    main()
