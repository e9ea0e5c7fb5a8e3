"""What the user asked last: the messages that grounding looks at. Most requests never need it."""

import msgspec

from cadenza.gateway.parts import find_words

MESSAGES_MAX = 3  # the last user messages: what a short question refers to stands in the ones before


class Asked(msgspec.Struct, frozen=True):
    """The last user message: its index, where the user's own words stand in its JSON, and the texts of the last few.

    The texts are oldest first. It cannot be told where the words stand if a field is there twice.
    """

    message: int
    words_start: int | None
    texts: tuple[str, ...]

    @property
    def question(self) -> str:
        return self.texts[-1]


class _Role(msgspec.Struct):
    role: str


_ROLE = msgspec.json.Decoder(_Role)


def find_asked(messages: list[msgspec.Raw], texts: list[str]) -> Asked | None:
    """None if there is no user message. `texts` has the text of each message, and may have more."""
    found = list[int]()
    for index in range(len(messages) - 1, -1, -1):
        if _ROLE.decode(messages[index]).role == "user":
            found.append(index)
            if len(found) == MESSAGES_MAX:
                break
    if not found:
        return None
    return Asked(found[0], find_words(messages[found[0]]), tuple(texts[index] for index in reversed(found)))
