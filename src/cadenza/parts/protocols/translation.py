"""What all translators need: the names of tools, and what the reply needs of the request. They run in a child too."""

import hashlib
import re

import msgspec

from cadenza.core.content import Content
from cadenza.core.errors import InvalidRequest

NAME_CHARS_MAX, DIGEST_CHARS = 64, 8  # of a tool; of the digest that ends a name that is changed
NAME_SENT_CHARS_MAX = 256  # of a tool or a namespace as clients send it
TOOLS_SENT_MAX = 1024  # with those of namespaces and those that are left out
TOOL_STEPS = 4
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


def fitting_name(path: str, name: str, namespace: str | None = None) -> str:
    """The name of a tool as every model takes it: not too long, and with its namespace, if it has one.

    InvalidRequest, with the path of the tool, if one of them is too long.
    """
    check_name(f"{path}.name", name)
    whole = name
    if namespace:
        check_name(f"{path}.namespace", namespace)
        whole = f"{namespace}__{name}"
    fitting = whole[:NAME_CHARS_MAX]
    if namespace:  # a bad name without one is refused
        fitting = NOT_IN_NAMES.sub("_", fitting)
    if fitting == whole:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGEST_CHARS]
    return f"{fitting[: NAME_CHARS_MAX - DIGEST_CHARS - 1]}_{digest}"


def check_name(path: str, name: str) -> None:
    """InvalidRequest if the name of a tool or a namespace is longer than any client's."""
    if len(name) > NAME_SENT_CHARS_MAX:
        raise InvalidRequest(f"{path}: has {len(name):,} characters; at most {NAME_SENT_CHARS_MAX} are allowed.")
