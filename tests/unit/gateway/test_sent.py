"""Credit is held for everything that goes upstream: every field of every shape of request, in every dialect."""

import asyncio
import json
import os
import secrets
import sys
from typing import Any

import msgspec
import pytest

from cadenza.core.records import Plan, Route
from cadenza.core.sent import NUMBER_BYTES_MAX, counted_texts, resolved, without_data
from cadenza.gateway.validate import parse_chat
from cadenza.routing.prompt import Character, PromptSize
from cadenza.upstreams.base import Ask, NotCounted
from cadenza.upstreams.dialects import DIALECTS
from cadenza.upstreams.writer import RequestWriter
from tests.sent_bodies import BodyMaker, count_whole
from tests.unit.gateway.prompts import TOKENIZER, Paid, ask_of

BODIES = int(os.environ.get("CADENZA_SENT_BODIES") or 300)
CHARACTER = Character("Be brief, and be kind.")
WINDOW_TOKENS = 100_000_000
LONG = "The ship left the harbour at nine. " * 100
LONG_TOKENS = TOKENIZER.count(LONG)
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
WRITERS = {name: RequestWriter(dialect) for name, dialect in DIALECTS.items()}


@pytest.fixture
def seed() -> int:
    """$CADENZA_SENT_SEED repeats a run; pytest shows this line when the test fails."""
    chosen = int(os.environ.get("CADENZA_SENT_SEED") or secrets.randbits(32))
    sys.stdout.write(f"CADENZA_SENT_SEED={chosen}\n")
    return chosen


def held_and_asked(body: bytes) -> tuple[int, Ask]:
    """The prompt tokens that credit is held for once they are counted, and the ask that goes upstream."""
    chat = parse_chat(body)
    plan = Plan.of("forte", (Route("acme", "large", WINDOW_TOKENS, 1000),))
    prompt = PromptSize(TOKENIZER, CHARACTER, chat.counted_texts, len(body), chat.media)

    async def run() -> tuple[int, Ask]:
        bound_tokens = prompt.to_hold(WINDOW_TOKENS)
        await prompt.count()
        assert prompt.to_hold(WINDOW_TOKENS) <= bound_tokens
        return prompt.to_hold(WINDOW_TOKENS), await ask_of(chat, CHARACTER, prompt, Paid(1000), plan)

    return asyncio.run(run())


def written(ask: Ask, dialect: str, system: str) -> bytes:
    route = Route("acme", "large", WINDOW_TOKENS, 1000, system="each" if system == "each" else "one")
    body = WRITERS[dialect].write(route, ask)
    ask.check_counted(len(body))
    return body


@pytest.mark.slow(reason="counts the tokens of many requests")
def test_no_upstream_counts_more_than_was_held(seed: int) -> None:
    """Bodies of every shape, written for every dialect: all that arrives has at most as many tokens as were held."""
    maker, ratios = BodyMaker(seed), [0.0]
    for number in range(BODIES):
        body = maker.body()
        held_tokens, ask = held_and_asked(body)
        dialects = [[*DIALECTS][number % len(DIALECTS)], "plain"]
        for dialect, system in zip(dialects, ("one", "each"), strict=True):
            sent_tokens = count_whole(written(ask, dialect, system))
            assert sent_tokens <= held_tokens, (number, dialect, body[:2000])
            ratios.append(sent_tokens / held_tokens)
    sys.stdout.write(
        f"{BODIES} bodies, at most {max(ratios):.4f} of what was held, {sum(ratios) / len(ratios):.3f} on average\n"
    )


EXTRA: dict[str, dict[str, Any]] = {
    "reasoning in the history": {"messages": [USER, {"role": "assistant", "content": "a", "reasoning_content": LONG}]},
    "a name": {"messages": [{**USER, "name": LONG}]},
    "an unknown field of a message": {"messages": [{**USER, "x": {"y": [LONG]}}]},
    "an unknown name": {"messages": [{**USER, LONG: 1}]},
    "an unknown field of a part": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": LONG}]}]
    },
    "a refusal beside content": {"messages": [USER, {"role": "assistant", "content": "a", "refusal": LONG}]},
    "an unknown field of an image": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,", "x": LONG}}],
            }
        ]
    },
    "an address that is a text": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": LONG}}]}]
    },
    "audio that is a text": {
        "messages": [
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": LONG, "format": "wav"}}]}
        ]
    },
    "an unknown field of a call": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}", "x": LONG}}
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "a"},
        ],
        "tools": [TOOL],
    },
    "a schema for the answer": {"messages": [USER], "response_format": {"type": "json_schema", "json_schema": LONG}},
    "words to stop at": {"messages": [USER], "stop": [LONG]},
    "a bias": {"messages": [USER], "logit_bias": {LONG: 1}},
    "a tool choice": {"messages": [USER], "tools": [TOOL], "tool_choice": {**TOOL, "x": LONG}},
}


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("case", [*EXTRA])
def test_every_field_that_is_sent_is_counted(case: str, is_ascii: bool) -> None:
    """A field that no list knows costs its tokens, however its letters are written."""
    body = json.dumps(EXTRA[case], ensure_ascii=is_ascii).encode()
    if is_ascii:
        body = body.replace(b"The ship", b"\\u0054he\\u0020ship")
    held_tokens, ask = held_and_asked(body)
    assert b"ship" in written(ask, "plain", "each")
    assert held_tokens >= LONG_TOKENS


def test_a_number_is_a_setting_unless_it_is_long() -> None:
    """The temperature is no text; a number of any length would be."""
    raw = msgspec.Raw(b"7" * NUMBER_BYTES_MAX)
    assert counted_texts([], {"seed": raw}, {}) == []
    assert counted_texts([], {"seed": msgspec.Raw(bytes(raw) + b"7")}, {}) == ["7" * (NUMBER_BYTES_MAX + 1)]


def test_a_field_that_is_there_twice_counts_twice() -> None:
    """Upstreams read one or the other: the message goes upstream with both."""
    one = json.dumps(LONG)
    held_tokens, _ = held_and_asked(f'{{"messages":[{{"role":"user","content":{one},"content":{one}}}]}}'.encode())
    assert 2 * LONG_TOKENS <= held_tokens <= 2 * LONG_TOKENS + 60


def test_plain_messages_cost_their_text_and_four_tokens_each() -> None:
    """What is known to cost nothing is not held for: roles, brackets, blanks, numbers and what is not forwarded."""
    fields = {"messages": [USER, USER], "temperature": 0.5, "seed": 10**9, "user": LONG, "metadata": {"a": LONG}}
    for indent in (None, 2):
        held_tokens, _ = held_and_asked(json.dumps(fields, indent=indent).encode())
        assert held_tokens == TOKENIZER.count_prompt([CHARACTER.text, "hi", "hi"])


def test_what_was_not_counted_is_not_sent() -> None:
    """A request that is larger than what was counted stays here, whoever put more into it."""
    _, ask = held_and_asked(json.dumps({"messages": [USER]}).encode())
    written(ask, "plain", "one")
    more = msgspec.structs.replace(ask, sampling={"new_field": msgspec.Raw(json.dumps(LONG).encode())})
    with pytest.raises(NotCounted):
        written(more, "plain", "one")


@pytest.mark.parametrize(
    "value", ["", "a\\b", '"', '\\"', "\\\\", "\\u0041", "\n\t\x00", "é🙂", {'a"': ['\\"', {"b\\": "/"}]}, ["\\\\\\\\"]]
)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_escapes_are_resolved(value: Any, is_ascii: bool) -> None:
    """The text of JSON is its letters, however they were written; what is between its strings stays."""
    strings: list[str] = []

    def collect(one: Any) -> None:
        if isinstance(one, str):
            strings.append(one)
        for item in (*one, *one.values()) if isinstance(one, dict) else one if isinstance(one, list) else ():
            collect(item)

    collect(value)
    text = resolved(json.dumps(value, ensure_ascii=is_ascii, indent=1).replace("/", "\\/").encode())
    assert all(one in text for one in strings)


def test_data_is_left_out_where_it_is_a_value() -> None:
    """The same letters at the end of another string stay: there is no string that begins with them."""
    data = msgspec.Raw(b'"QUJD"')
    json_bytes = rb'{"a":"\"QUJD","b": "QUJD","c":"QUJD"}'
    assert without_data(json_bytes, [data]) == rb'{"a":"\"QUJD","b": ,"c":"QUJD"}'
    assert without_data(json_bytes, [data, data]) == rb'{"a":"\"QUJD","b": ,"c":}'
