"""What upstreams refuse, or silently get wrong: each rule looks at the body of a request and yields what it minds."""

import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

Asked = dict[str, Any]
Rule = Callable[[Asked], Iterator[str]]

CORE_FIELDS = frozenset(
    {
        *("model", "messages", "stream", "max_tokens", "temperature", "top_p", "stop"),
        *("response_format", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"),
    }
)
CALL_FIELDS = {"id", "type", "function"}
FUNCTION_FIELDS = {"name", "arguments"}


def assistants(asked: Asked) -> list[Any]:
    return [message for message in asked["messages"] if message["role"] == "assistant"]


def calls_of(asked: Asked) -> list[Any]:
    """The calls of each message that has some."""
    return [message["tool_calls"] for message in asked["messages"] if message.get("tool_calls")]


def only_fields(known: Collection[str]) -> Rule:
    """Unknown top-level fields are refused."""
    return lambda asked: (f"unknown field {name}" for name in asked if name not in known)


def no_fields(*names: str) -> Rule:
    return lambda asked: (f"field {name} is not supported" for name in names if name in asked)


def only_message_fields(*known: str) -> Rule:
    """Unknown fields of messages, of their calls and of the functions of these are refused."""

    def rule(asked: Asked) -> Iterator[str]:
        for message in asked["messages"]:
            yield from (f"unknown field {name} in a message" for name in message if name not in known)
        for call in (call for calls in calls_of(asked) for call in calls):
            yield from (f"unknown field {name} in a call" for name in call.keys() - CALL_FIELDS - set(known))
            yield from (f"unknown field {name} in a function" for name in call["function"].keys() - FUNCTION_FIELDS)

    return rule


def only_roles(*known: str) -> Rule:
    return lambda asked: (f"role {one['role']}" for one in asked["messages"] if one["role"] not in known)


def no_nulls(*allowed: str) -> Rule:
    """Null fields of messages and tools are refused."""

    def rule(asked: Asked) -> Iterator[str]:
        for message in asked["messages"]:
            nulls = (name for name, value in message.items() if value is None and name not in allowed)
            yield from (f"{name} is null in a message" for name in nulls)
        for tool in asked.get("tools", ()):
            yield from (f"{name} is null in a tool" for name, value in tool["function"].items() if value is None)

    return rule


def one_system_message(asked: Asked) -> Iterator[str]:
    """The chat template refuses a system message that is not the first message."""
    if "system" in [message["role"] for message in asked["messages"][1:]]:
        yield "a system message that is not at the beginning"


def text_content(asked: Asked) -> Iterator[str]:
    """Content must be a string; for an assistant it may be null."""
    for message in asked["messages"]:
        if not isinstance(message.get("content"), str | None):
            yield f"the content of a message of {message['role']} is an array"


def content_present(asked: Asked) -> Iterator[str]:
    for message in asked["messages"]:
        if message.get("content") is None:
            yield f"the content of a message of {message['role']} is null or missing"


def no_null_content(asked: Asked) -> Iterator[str]:
    for message in asked["messages"]:
        if "content" in message and message["content"] is None:
            yield f"the content of a message of {message['role']} is null"


def no_empty_answers(asked: Asked) -> Iterator[str]:
    for message in assistants(asked):
        if not message.get("content") and not message.get("tool_calls"):
            yield "an assistant message without content and calls"


def no_text_beside_calls(asked: Asked) -> Iterator[str]:
    """The calls of a message that also has content are lost."""
    for message in assistants(asked):
        if message.get("tool_calls") and "content" in message:
            yield "a message has content and calls"


def json_arguments(asked: Asked) -> Iterator[str]:
    for call in (call for calls in calls_of(asked) for call in calls):
        if not isinstance(json.loads(call["function"]["arguments"]), dict):
            yield "arguments that are not a JSON object"


def ids_like(pattern: str) -> Rule:
    """Call ids of another form are refused."""

    def rule(asked: Asked) -> Iterator[str]:
        ids = [call["id"] for calls in calls_of(asked) for call in calls]
        ids += [message["tool_call_id"] for message in asked["messages"] if message["role"] == "tool"]
        yield from (f"the call id {call_id}" for call_id in ids if not re.fullmatch(pattern, call_id))

    return rule


def answered_calls(asked: Asked) -> Iterator[str]:
    """Each call has its answer, under the same id."""
    called = [call["id"] for calls in calls_of(asked) for call in calls]
    answered = [message.get("tool_call_id") for message in asked["messages"] if message["role"] == "tool"]
    if sorted(called) != sorted(map(str, answered)):
        yield f"calls {called}, but answers to {answered}"


def reasoning_in_every_answer(asked: Asked) -> Iterator[str]:
    for message in assistants(asked):
        if not isinstance(message.get("reasoning_content"), str):
            yield "an assistant message without reasoning_content"


def reasoning_beside_calls(asked: Asked) -> Iterator[str]:
    for message in assistants(asked):
        if message.get("tool_calls") and not message.get("reasoning_content"):
            yield "calls without reasoning_content"


def no_reasoning_under(*names: str) -> Rule:
    """Reasoning under these names is refused, or not read."""
    return lambda asked: (
        f"reasoning as {name}" for message in asked["messages"] for name in names if message.get(name) is not None
    )


def tools_rules(asked: Asked) -> Iterator[str]:
    """What OpenAI and most others ask of the fields of the tool path."""
    if asked.get("tools") == []:
        yield "tools is empty"
    if not asked.get("tools"):
        yield from (f"{name} without tools" for name in ("tool_choice", "parallel_tool_calls") if name in asked)


def choice_is_a_word(asked: Asked) -> Iterator[str]:
    """An object is silently taken for `auto`."""
    if not isinstance(asked.get("tool_choice"), str | None):
        yield "tool_choice is an object"


def top_p_below_1(asked: Asked) -> Iterator[str]:
    if asked.get("top_p", 0.5) >= 1:
        yield "top_p is not below 1"


def stop_is_an_array(asked: Asked) -> Iterator[str]:
    if not isinstance(asked.get("stop", []), list):
        yield "stop is not an array"


def options_only_with_stream(asked: Asked) -> Iterator[str]:
    if "stream_options" in asked and not asked.get("stream"):
        yield "stream_options without stream"


def fields_equal(**wanted: Any) -> Rule:
    """Fields that every request must have with these values."""
    return lambda asked: (f"{name} is {asked.get(name)}" for name in wanted if asked.get(name) != wanted[name])
