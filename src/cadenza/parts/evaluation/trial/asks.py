"""The tiny requests of a trial. They ask for at most 16 tokens, or 64 where a tool call must fit in."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from cadenza.upstreams.base import Ask

Content = Literal["null", "empty", "omit"]  # the same words as Dialect.null_content

LIMIT_TOKENS = 16
CALL_LIMIT_TOKENS = 64

# Long enough that their tokens show in the count of the prompt. Some chat templates add 20 tokens of their own.
SYSTEM = (
    "You are a careful assistant who answers in plain words. Keep each answer short, give the facts that were asked "
    "for, and leave out greetings, opinions and advice. Write numbers as digits and names of cities in English. If a "
    "question cannot be answered, say so in one sentence and stop there."
)
SECOND_SYSTEM = (
    "The person who asks is testing an endpoint and will read only the first line of the answer. Do not use tables, "
    "headings or lists. Do not repeat the question. Do not explain how the answer was found, and do not offer further "
    "help at the end, because nobody will come back to this conversation."
)
LAST_NUMBER = "30"  # an answer that reaches it was not cut
COUNT = f"Count from 1 to {LAST_NUMBER}, with commas between the numbers."
BEGUN = "1, 2, 3,"  # the start of an answer
CITY = "What is the weather in Oslo now? Use the tool."

FUNCTION = "get_weather"
CALL_ID = "call_4f8e2ab1c09d47e6b35a7d10"  # as clients send them
SHORT_CALL_ID = "a1B2c3D4e"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": FUNCTION,
            "description": "The weather in a city now.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
NAMED = {"type": "function", "function": {"name": FUNCTION}}
SAMPLING: Mapping[str, object] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 7,
    "stop": ["###"],
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
}


def counting(*, stream: bool = False) -> Ask:
    return Ask([_message("system", SYSTEM), _message("user", COUNT)], {}, LIMIT_TOKENS, stream)


def counting_without_system(sampling: Mapping[str, object] | None = None) -> Ask:
    return Ask([_message("user", COUNT)], _raw_fields(sampling or {}), LIMIT_TOKENS, stream=False)


def two_system_messages() -> Ask:
    messages = [_message("system", SYSTEM), _message("system", SECOND_SYSTEM), _message("user", COUNT)]
    return Ask(messages, {}, LIMIT_TOKENS, stream=False)


def calling(choice: object, *, stream: bool = False, parallel: bool | None = None) -> Ask:
    """A question that the tool answers."""
    tools = {"tools": TOOLS, "tool_choice": choice}
    if parallel is not None:
        tools["parallel_tool_calls"] = parallel
    messages = [_message("system", SYSTEM), _message("user", CITY)]
    return Ask(messages, {}, CALL_LIMIT_TOKENS, stream, tools=_raw_fields(tools))


def tool_turn(content: Content = "null", call_id: str = CALL_ID) -> Ask:
    """The turn after a call: the call, without content, and its result."""
    call = {"id": call_id, "type": "function", "function": {"name": FUNCTION, "arguments": '{"city":"Oslo"}'}}
    given: dict[Content, dict[str, object]] = {"null": {"content": None}, "empty": {"content": ""}, "omit": {}}
    messages = [
        _message("system", SYSTEM),
        _message("user", CITY),
        _raw({"role": "assistant", "tool_calls": [call], **given[content]}),
        _raw({"role": "tool", "tool_call_id": call_id, "content": "4 degrees, rain"}),
    ]
    return Ask(messages, {}, LIMIT_TOKENS, stream=False, tools=_raw_fields({"tools": TOOLS}))


def reasoning_sent_back(field: str) -> Ask:
    messages = [
        _message("system", SYSTEM),
        _message("user", "How many days has a week?"),
        _raw({"role": "assistant", "content": "7", field: "A week has seven days."}),
        _message("user", COUNT),
    ]
    return Ask(messages, {}, LIMIT_TOKENS, stream=False)


def continuing() -> Ask:
    """Streamed, as only streams are continued. llama.cpp repeats the beginning in a plain reply."""
    return msgspec.structs.replace(counting(stream=True), begun=BEGUN)


def prompt_bytes(ask: Ask) -> int:
    return sum(len(bytes(message)) for message in ask.messages)


def _message(role: str, content: str) -> msgspec.Raw:
    return _raw({"role": role, "content": content})


def _raw_fields(fields: Mapping[str, object]) -> dict[str, msgspec.Raw]:
    return {name: _raw(value) for name, value in fields.items()}


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
