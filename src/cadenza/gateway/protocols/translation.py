"""What a translator makes of a request of another protocol: the body of a chat request. It runs in a child too."""

import hashlib
import re
from typing import Protocol

import msgspec

from cadenza.core.content import Content

NAME_CHARS_MAX, DIGEST_CHARS = 64, 8  # of a tool; of the digest that ends a name that is changed
TOOLS_SENT_MAX = 1024  # with those of namespaces and those that are left out
NOT_IN_NAMES = re.compile("[^A-Za-z0-9_-]")


class Kept(Content, msgspec.Struct, frozen=True, omit_defaults=True):
    """What the reply needs of the request: fields to repeat, and the namespaces and names of tools that are changed."""

    echo: dict[str, msgspec.Raw] = {}
    names: dict[str, tuple[str, str]] = {}
    is_encrypted: bool = False  # the client wants reasoning in a form to send back
    shows_thinking: bool = False

    def named(self, name: str) -> tuple[str, str]:
        """The namespace and the name of a tool as the client knows it."""
        return self.names.get(name, ("", name))


KEPT = msgspec.json.Decoder(Kept)


class Translated(Content, msgspec.Struct, frozen=True, tag=True):
    """A chat body, and `Kept` as JSON."""

    chat: memoryview
    kept: bytes = b"{}"


class Translate(Protocol):
    """Translates the body of a request; InvalidRequest if it cannot, TooManySteps if it takes more than these."""

    def __call__(self, body: bytes | bytearray, steps_max: float, /) -> Translated: ...


def fitting_name(name: str, namespace: str | None = None) -> str:
    """The name of a tool as every model takes it: not too long, and with its namespace, if it has one."""
    whole = f"{namespace}__{name}" if namespace else name
    fitting = NOT_IN_NAMES.sub("_", whole) if namespace else whole  # a bad name without one is refused
    if fitting == whole and len(whole) <= NAME_CHARS_MAX:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGEST_CHARS]
    return f"{fitting[: NAME_CHARS_MAX - DIGEST_CHARS - 1]}_{digest}"
