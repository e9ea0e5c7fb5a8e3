"""The twins are strict: most of them find fault with a request that is not written in their dialect."""

import json
from typing import Any

import pytest
from msgspec import Raw

from cadenza.core.dialect import DIALECTS, PLAIN
from cadenza.core.records import Route
from cadenza.upstreams.base import Ask
from cadenza.upstreams.message_rules import MessageRules
from cadenza.upstreams.writer import write_request
from tests.contract.dialects.stage import TWINS
from tests.contract.dialects.test_conversations import ODD_MESSAGES, SAMPLING
from tests.contract.dialects.twin import KEY, MODEL
from tests.contract.tool_upstream import TOOLS
from tests.loopback import Request

LIKE_PLAIN = {"vllm", "together"}  # they differ from `plain` in what a request cannot show
FORWARDED = ("temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
CHOICE = {"type": "function", "function": {"name": "calculate"}}


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def plain_request(path: str) -> Request:
    """An odd streaming request, as the dialect `plain` writes it."""
    messages = [{"role": "system", "content": "Be brief."}, *ODD_MESSAGES[2:]]
    ask = Ask(
        [raw(message) for message in messages],
        {name: raw(SAMPLING[name]) for name in FORWARDED},
        100,
        stream=True,
        tools={"tools": raw(TOOLS), "tool_choice": raw(CHOICE)},
    )
    body = write_request(PLAIN, MessageRules(PLAIN), Route("twin", MODEL, 100_000, 1000), ask)
    return Request("POST", path, {"authorization": f"Bearer {KEY}"}, body)


@pytest.mark.parametrize("name", TWINS)
def test_a_plain_request_is_refused(name: str) -> None:
    """A twin finds fault with a plain request, unless its dialect writes the same."""
    twin = TWINS[name]
    problems = twin.problems_of(plain_request(twin.path or f"{twin.base_path}/chat/completions"))
    assert (problems == []) == (name in LIKE_PLAIN)


def test_every_dialect_has_a_twin() -> None:
    """Every dialect but `plain` is replayed."""
    assert {twin.dialect for twin in TWINS.values()} == DIALECTS.keys() - {"plain"}
