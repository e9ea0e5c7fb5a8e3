"""What the user asked last: the messages that grounding looks at. Most requests never need it."""

import msgspec

from cadenza.core.chat import Asked
from cadenza.core.message_json import find_words

MESSAGES_MAX = 3  # the last user messages: what a short question refers to stands in the ones before


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
