"""Trouble that a dialect does not prevent, and the setting of the route that does. docs/upstreams.md lists these."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.contract.agent import TOOLS
from tests.contract.dialects import rules
from tests.contract.dialects.stage import Stage
from tests.contract.dialects.twin import Conversation


def forced_without_thinking(asked: rules.Asked) -> Iterator[str]:
    if asked.get("tool_choice") not in (None, "auto", "none") and asked.get("thinking") != {"type": "disabled"}:
        yield "a forced tool while thinking"


def no_json_schema(asked: rules.Asked) -> Iterator[str]:
    if (asked.get("response_format") or {}).get("type") == "json_schema":
        yield "this response_format type is unavailable"


def tools_without_effort(asked: rules.Asked) -> Iterator[str]:
    if asked.get("tools") and asked.get("reasoning_effort") != "none":
        yield "function tools with reasoning_effort"


def needs_limit(asked: rules.Asked) -> Iterator[str]:
    if "max_tokens" not in asked:
        yield "the answer would be cut"


class Trouble(msgspec.Struct, frozen=True):
    """A rule of some models of an upstream, a request that breaks it, and the setting that helps."""

    twin: str
    rule: rules.Rule
    fields: dict[str, Any]
    route_toml: str


FORCED = {"tools": TOOLS, "tool_choice": "required"}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}}
NO_THINKING = 'fields = { thinking = { type = "disabled" } }\n'
TROUBLES = {
    "kimi, temperature": Trouble(
        "kimi", rules.no_fields("temperature"), {"temperature": 0.5}, 'omit = ["temperature"]\n'
    ),
    "kimi, forced tool": Trouble("kimi", forced_without_thinking, FORCED, NO_THINKING),
    "deepseek, forced tool": Trouble("deepseek", forced_without_thinking, FORCED, NO_THINKING),
    "deepseek, json_schema": Trouble("deepseek", no_json_schema, SCHEMA, 'omit = ["response_format"]\n'),
    "openai, tools and effort": Trouble(
        "openai", tools_without_effort, {"tools": TOOLS}, 'fields = { reasoning_effort = "none" }\n'
    ),
    "together, short answers": Trouble("together", needs_limit, {}, "always_send_max_tokens = true\n"),
    "azure, old api-version": Trouble(
        "azure", rules.no_fields("stream_options"), {"stream": True}, 'omit = ["stream_options"]\n'
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_setting_of_a_route_helps(stage: Stage, trouble: str) -> None:
    """Without the setting the upstream refuses the request, and with it the request is served."""
    given = TROUBLES[trouble]
    problems = []
    for route_toml in ("", given.route_toml):
        stage.switch(given.twin, route_toml)
        stage.upstream.reset()
        conversation = Conversation(stage.twin, given.rule)
        stage.upstream.always(conversation)
        reply = stage.api.chat(**given.fields)
        assert reply.status == (400 if conversation.problems else 200), reply.body
        problems.append(len(conversation.problems))
    assert problems == [1, 0]
