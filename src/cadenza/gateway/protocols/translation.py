"""What a translator makes of a request of another protocol: the body of a chat request. It runs in a child too."""

from typing import Protocol

import msgspec

from cadenza.core.content import Content


class Translated(Content, msgspec.Struct, frozen=True, tag=True):
    """A chat body, and what the reply needs of the request: JSON in a form of the protocol's own."""

    chat: memoryview
    kept: bytes = b"null"


class Translate(Protocol):
    """Translates the body of a request; InvalidRequest if it cannot, TooManySteps if it takes more than these."""

    def __call__(self, body: bytes | bytearray, steps_max: float, /) -> Translated: ...
