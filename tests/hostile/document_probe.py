"""The child that reads documents, trying what a parser that was taken over by a hostile file would try.

It is prepared and confined as the real one, and then does what its task names.
"""

import codecs
import encodings.aliases
from collections.abc import Callable

from cadenza.children.confine import confine, enter_sandbox, read_limits, serve_tasks
from cadenza.core.tokens import Tokenizer
from cadenza.grounding.files.child import prepare
from cadenza.grounding.files.ranking import rank
from tests.unit.children.probe import ATTEMPTS

NOT_HERE = {"mbcs", "oem"}


def know_encodings() -> None:
    """All that Python knows."""
    for name in set(encodings.aliases.aliases.values()) - NOT_HERE:
        codecs.lookup(name)


def rank_many() -> None:
    """So many that SQLite would sort them in a file."""
    assert len(rank([f"passage {number} of a book about ships" for number in range(100_000)], "ships")) == 100_000


HARMLESS: dict[str, Callable[[], object]] = {
    "know all encodings": know_encodings,
    "load the tokenizer": Tokenizer().load,
    "rank many passages": rank_many,
}


def serve(head: bytearray, body: bytearray) -> bytes:
    try:
        (ATTEMPTS | HARMLESS)[head.decode()]()
    except (OSError, ImportError, LookupError) as error:
        return type(error).__name__.encode()
    return b"done"


def main() -> None:
    limits = read_limits()
    confine(limits)
    prepare(limits)
    enter_sandbox()
    serve_tasks(serve)


if __name__ == "__main__":
    main()
