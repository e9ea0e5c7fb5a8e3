"""A valid chat request, which gateway/validate.py makes from a body, and the types of replies as the API shows them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from cadenza.core.codes import random_id
from cadenza.core.content import Content
from cadenza.core.message_json import find_words
from cadenza.core.money import format_dollars
from cadenza.core.price_schedules import Pricing, PricingChange
from cadenza.core.records import FinishReason, Usage
from cadenza.core.sent import counted_texts, sent_bytes
from cadenza.core.tool_calls import ToolCallDelta

# The sampling fields of OpenAI's interface that go upstream as they are.
SAMPLING = (
    "temperature",
    "top_p",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "response_format",
    "reasoning_effort",
    "logit_bias",
)

# Fields that the service knows, and most upstreams do not.
CACHE_KEY = "prompt_cache_key"  # of requests that begin alike
ASKS_FOR_SEARCH = "web_search_options"
# What a search answers to: that field, and tools of OpenAI or Anthropic, which leave it to us whether one is needed.
SEARCH_FIELDS = (ASKS_FOR_SEARCH, "tools.web_search")

Fields = Mapping[str, msgspec.Raw]
NO_FIELDS: Fields = {}
ESCAPE_BYTES = 6
QUESTION_MESSAGES_MAX = 3  # what a short question refers to is in the user messages before it


class ReplyMessage(Content, msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message of a non-streaming reply. The content is null if it has calls or a refusal instead.

    The reasoning is present if the model showed it, in the fields that its upstream uses.
    """

    role: str = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_details: list[Any] | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET
    annotations: list[dict[str, Any]] | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice of a non-streaming reply."""

    index: int = 0
    message: ReplyMessage
    logprobs: None = None
    finish_reason: FinishReason


class Completion(Content, msgspec.Struct, frozen=True, kw_only=True):
    """A non-streaming reply."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice]
    usage: dict[str, Any]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A class, as the list of models shows it. `auto` has no price of its own."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "cadenza"
    pricing: Pricing | UnsetType = UNSET
    pricing_changes: list[PricingChange] | UnsetType = UNSET  # those to come, by date


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All usable classes."""

    object: str = "list"
    data: list[Model]


def call_object(delta: ToolCallDelta) -> dict[str, Any]:
    """A part of a call, of a function or of a custom tool, as a stream shows it."""
    text = {"input" if delta.type == "custom" else "arguments": delta.arguments}
    extra = {"extra_content": delta.extra_content} if delta.extra_content else {}
    if not delta.id:
        return {"index": delta.index, delta.type: text, **extra}
    head = {"index": delta.index, "id": delta.id, "type": delta.type}
    return {**head, delta.type: {"name": delta.name, **text}, **extra}


def assemble_calls(deltas: list[ToolCallDelta]) -> list[dict[str, Any]]:
    """Join the deltas of each call. A non-streaming reply shows it whole, and without an index."""
    by_index: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    calls = []
    for parts in by_index.values():
        arguments = "".join([part.arguments for part in parts])
        extra_content = next((part.extra_content for part in reversed(parts) if part.extra_content), None)
        call = call_object(msgspec.structs.replace(parts[0], arguments=arguments, extra_content=extra_content))
        del call["index"]
        calls.append(call)
    return calls


def text_of_extras(extras: Mapping[str, Any]) -> str:
    """The text of a refusal or of reasoning that counts as output. The same reasoning may be in two fields."""
    reasoning = extras.get("reasoning_content") or extras.get("reasoning", "")
    return str(extras.get("refusal", "") + reasoning)


def new_completion_id(now_ms: int) -> str:
    """Ids sort by time, so rows written together are stored together: a request costs 8% less.

    The time has 11 hexadecimal digits; `hex` writes them in half the instructions of a format.
    """
    return f"chatcmpl-{now_ms.to_bytes(6).hex()[1:]}{random_id()}"


def usage_object(usage: Usage, cost_nano: int | None = None) -> dict[str, Any]:
    """Token counts as the API shows them, and the cost in dollars if it is given: a number, as at OpenRouter."""
    shown: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.completion_details:
        shown["completion_tokens_details"] = usage.completion_details
    if cost_nano is not None:
        shown |= cost_object(cost_nano)
    return shown


def cost_object(cost_nano: int | None) -> dict[str, Any]:
    """The cost, if it is given, with all of its digits, unlike a float."""
    return {} if cost_nano is None else {"cost": msgspec.Raw(format_dollars(cost_nano).encode())}


class CountTexts(Protocol):
    """Counts large texts."""

    async def __call__(self, character: str, *, is_urgent: bool) -> int:
        """The tokens of the character and the texts; CadenzaError if they cannot be counted now.

        An urgent count waits as long as it must.
        """


class LargeTexts(msgspec.Struct, frozen=True):
    """The texts of a large body. They are counted in pieces, or where the body was parsed."""

    chars: int
    count: CountTexts


class Media(msgspec.Struct, frozen=True):
    """The parts of messages that are not text: their bytes in the body, and the tokens that they become."""

    size_bytes: int = 0
    tokens: int = 0  # of usual images, audio and files: models differ
    tokens_held: int = 0  # what credit is held for: the most that a provider can be expected to count
    tokens_max: int = 0
    doubtful_tokens: int = 0  # the part of `tokens_max` that models may count several times over


NO_MEDIA = Media()


class FilePart(Content, msgspec.Struct, frozen=True):
    """A file to be read: the span of its part in the JSON of its message, its name and its data."""

    message: int
    start: int
    end: int
    name: str
    data: msgspec.Raw  # a JSON string, with its quotes


class UserQuestion(Content, msgspec.Struct, frozen=True):
    """The last user message: its index, where the user's own words begin in its JSON, and the texts of the last few.

    The texts are those of the last user messages, oldest first. `words_start` is None if a field is repeated: then
    it is not known which content counts.
    """

    message: int
    words_start: int | None
    texts: tuple[str, ...]

    @property
    def text(self) -> str:
        return self.texts[-1]


class UsageOptions(msgspec.Struct):
    """What the usage of a reply has, besides token counts, as a request says it."""

    include: bool | None = None  # its cost


class ChatRequest(Content, msgspec.Struct, frozen=True):
    """A valid chat request."""

    model: str | None
    messages: list[msgspec.Raw]
    texts: list[str] | LargeTexts  # of the messages: what grounding looks at. Empty once the ask is composed
    stream: bool
    max_tokens: int | None
    sampling: dict[str, msgspec.Raw]
    tools: dict[str, msgspec.Raw]  # the fields of the tool path, unchanged; empty on the plain path
    leading_system: int = 0  # how many system messages it begins with
    system: bytes | memoryview = b""  # their texts, escaped for a JSON string
    needs: frozenset[str] = frozenset()  # what a route must be able to take: `custom_tools`, `vision`, `audio`, `files`
    question: UserQuestion | None = None  # of a large body; that of a small one is found when it is needed
    files: tuple[FilePart, ...] = ()  # to be read here, on the plain path
    media: Media = NO_MEDIA
    extra: Fields = NO_FIELDS  # fields that are dropped, unless a route passes them on
    excluded: Mapping[int, Sequence[msgspec.Raw]] = {}  # the data that `media` measures, by the index of its message
    wants_cost: bool = False  # the reply is to say what it cost

    @property
    def fields(self) -> dict[str, msgspec.Raw]:
        """Everything but the messages that goes upstream. A new field belongs in one of these two."""
        return self.sampling | self.tools if self.tools else self.sampling

    @property
    def least_chars(self) -> int:
        """The fewest characters that the counted texts can have: an escape makes six bytes of one."""
        assert isinstance(self.texts, list), "whoever parsed a large body has said how many it has"
        json_bytes = sent_bytes(self.messages, self.fields) - self.media.size_bytes
        return max(sum(map(len, self.texts)), json_bytes // ESCAPE_BYTES)

    def counted_texts(self) -> list[str]:
        """The texts whose tokens make up the prompt: everything that goes upstream."""
        return counted_texts(self.messages, self.fields, self.excluded)


class _Role(Content, msgspec.Struct):
    role: str


_ROLE = msgspec.json.Decoder(_Role)


def find_user_question(messages: list[msgspec.Raw], texts: list[str]) -> UserQuestion | None:
    """None if there is no user message. `texts` has the text of each message, and may have more."""
    indexes: list[int] = []
    for index in range(len(messages) - 1, -1, -1):
        if _ROLE.decode(messages[index]).role == "user":
            indexes.append(index)
            if len(indexes) == QUESTION_MESSAGES_MAX:
                break
    if not indexes:
        return None
    newest = indexes[0]
    return UserQuestion(newest, find_words(messages[newest]), tuple(texts[index] for index in reversed(indexes)))
