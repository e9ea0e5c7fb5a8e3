"""The twins are strict: each finds fault with a request that lacks any one of the changes that its dialect makes."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from cadenza.core.records import Route
from cadenza.upstreams.base import Ask
from cadenza.upstreams.dialects import DIALECTS, PLAIN, Dialect
from cadenza.upstreams.writer import RequestWriter
from tests.contract.agent import TOOLS
from tests.contract.dialects.stage import TWINS
from tests.contract.dialects.test_conversations import ODD_MESSAGES, SAMPLING
from tests.contract.dialects.twin import KEY, MODEL, Twin
from tests.loopback import Request

LIKE_PLAIN = {"vllm", "together"}  # they differ from `plain` in what a request cannot show
FORWARDED = ("temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
CHOICE = {"type": "function", "function": {"name": "calculate"}}
TALKING_CALLER = {**ODD_MESSAGES[9], "content": "Let me look.", "reasoning_content": "Hm.", "reasoning": "Hm."}
NOT_IN_A_REQUEST = {
    "enforces_retention",
    "hosts",
    "custom_tools",
    "continues",
    "key_header",
    "has_deployments",
    "takes",
}
IGNORED = {
    (dialect, "reasoning") for dialect in ("tgi", "groq", "mistral", "anthropic", "gemini")
}  # or left out anyway
IGNORED |= {("openai", "stream_options")}  # without it the chunks have padding
CHANGES = [
    (name, field)
    for name, twin in TWINS.items()
    for field, value in msgspec.structs.asdict(DIALECTS[twin.dialect]).items()
    if value != getattr(Dialect(), field) and field not in NOT_IN_A_REQUEST and not field.startswith("continue_")
    if (twin.dialect, field) not in IGNORED
]


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def problems(twin: Twin, dialect: Dialect) -> list[str]:
    """What a twin minds in an odd streaming request with tools, as a dialect writes it."""
    messages = [{"role": "system", "content": "Be brief."}, *ODD_MESSAGES[2:], TALKING_CALLER, ODD_MESSAGES[10]]
    ask = Ask(
        [raw(message) for message in messages],
        {name: raw(SAMPLING[name]) for name in FORWARDED},
        100,
        stream=True,
        tools={"tools": raw(TOOLS), "tool_choice": raw(CHOICE)},
    )
    body = RequestWriter(dialect).write(Route("twin", MODEL, 100_000, 1000), ask)
    key = f"Bearer {KEY}" if twin.key_header == "authorization" else KEY
    path = twin.path or f"{twin.base_path}/chat/completions"
    return twin.problems_of(Request("POST", path, {twin.key_header: key}, body))


@pytest.mark.parametrize("name", TWINS)
def test_a_plain_request_is_refused(name: str) -> None:
    """A twin finds fault with a plain request, unless its dialect writes the same."""
    assert (problems(TWINS[name], PLAIN) == []) == (name in LIKE_PLAIN)


@pytest.mark.parametrize(("name", "field"), CHANGES)
def test_every_change_of_a_dialect_is_needed(name: str, field: str) -> None:
    """Without any one of its changes a request is refused, and with all of them it is accepted."""
    dialect = DIALECTS[TWINS[name].dialect]
    assert problems(TWINS[name], dialect) == []
    lacking = msgspec.structs.replace(dialect, **{field: getattr(Dialect(), field)})
    assert problems(TWINS[name], lacking) != []


def test_every_dialect_has_a_twin() -> None:
    """Every dialect but `plain` is replayed."""
    assert {twin.dialect for twin in TWINS.values()} == DIALECTS.keys() - {"plain"}
