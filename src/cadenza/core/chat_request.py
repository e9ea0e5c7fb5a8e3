"""A valid chat request, and its parts that more than one stage looks at. `gateway.validate` makes it from a body."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from cadenza.core.message_json import find_words
from cadenza.core.records import OUTPUT_TOKENS_MAX
from cadenza.core.sent import counted_texts

Fields = Mapping[str, msgspec.Raw]
NO_FIELDS: Fields = {}
QUESTION_MESSAGES_MAX = 3  # what a short question refers to is in the user messages before it


class CountTexts(Protocol):
    """Counts large texts."""

    async def __call__(self, character: str, *, is_urgent: bool) -> tuple[int, int]:
        """The tokens of the texts, and of the character; CadenzaError if they cannot be counted now.

        An urgent count waits as long as it must.
        """


class LargeTexts(msgspec.Struct, frozen=True):
    """The texts of a large body. They are counted where the body is parsed."""

    chars: int
    count: CountTexts


class Media(msgspec.Struct, frozen=True):
    """The parts of messages that are not text: their bytes in the body, and the tokens that they become."""

    size_bytes: int = 0
    tokens: int = 0  # of usual images, audio and files: models differ
    tokens_held: int = 0  # what credit is held for: the most that a provider can be expected to count
    tokens_max: int = 0
    doubtful_tokens: int = 0  # those of `tokens_max` of which models may count a multiple


NO_MEDIA = Media()


class FilePart(msgspec.Struct, frozen=True):
    """A file to be read: from where to where its part stands in the JSON of its message, its name and its data."""

    message: int
    start: int
    end: int
    name: str
    data: msgspec.Raw  # a JSON string, with its quotes


class UserQuestion(msgspec.Struct, frozen=True):
    """The last user message: its index, where the user's own words begin in its JSON, and the texts of the last few.

    The texts are those of the last user messages, oldest first. `words_start` is None if a field is there twice: then
    it is not known which content counts.
    """

    message: int
    words_start: int | None
    texts: tuple[str, ...]

    @property
    def text(self) -> str:
        return self.texts[-1]


class ChatRequest(msgspec.Struct, frozen=True):
    """A valid chat request."""

    model: str | None
    messages: list[msgspec.Raw]
    texts: list[str] | LargeTexts  # of the messages: what grounding looks at
    stream: bool
    max_tokens: int | None
    sampling: dict[str, msgspec.Raw]
    tools: dict[str, msgspec.Raw]  # the fields of the tool path, unchanged; empty on the plain path
    leading_system: int = 0  # how many system messages it begins with
    system: bytes | memoryview = b""  # their texts, as they stand inside a JSON string
    needs: frozenset[str] = frozenset()  # what a route must be able to take: `custom_tools`, `vision`, `audio`, `files`
    question: UserQuestion | None = None  # of a large body; that of a small one is found when it is needed
    files: tuple[FilePart, ...] = ()  # to be read here, on the plain path
    media: Media = NO_MEDIA
    extra: Fields = NO_FIELDS  # fields that are dropped, unless a route passes them on
    excluded: Mapping[int, Sequence[msgspec.Raw]] = {}  # the data that `media` measures, by the index of its message

    @property
    def fields(self) -> dict[str, msgspec.Raw]:
        """Everything that goes upstream beside the messages. A new field belongs into one of these two."""
        return self.sampling | self.tools if self.tools else self.sampling

    def counted_texts(self) -> list[str]:
        """The texts whose tokens make up the prompt: everything that goes upstream."""
        return counted_texts(self.messages, self.fields, self.excluded)

    @property
    def room_tokens(self) -> int:
        """How much output a window must have room for, so that the prompt need not be counted exactly."""
        return self.max_tokens or OUTPUT_TOKENS_MAX


class _Role(msgspec.Struct):
    role: str


_ROLE = msgspec.json.Decoder(_Role)


def find_user_question(messages: list[msgspec.Raw], texts: list[str]) -> UserQuestion | None:
    """None if there is no user message. `texts` has the text of each message, and may have more."""
    found = list[int]()
    for index in range(len(messages) - 1, -1, -1):
        if _ROLE.decode(messages[index]).role == "user":
            found.append(index)
            if len(found) == QUESTION_MESSAGES_MAX:
                break
    if not found:
        return None
    return UserQuestion(found[0], find_words(messages[found[0]]), tuple(texts[index] for index in reversed(found)))
