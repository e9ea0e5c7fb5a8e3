"""The chat templates of real models, run by llama.cpp: the character layer and the client's guidance both survive."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from cadenza.core.records import Plan, Route
from cadenza.gateway.validate import parse_chat
from cadenza.routing.prompt import Character
from cadenza.upstreams.dialects import DIALECTS
from cadenza.upstreams.writer import RequestWriter
from tests.environment import environment
from tests.unit.gateway.prompts import Paid, ask_of, prompt_of

WAIT_S = 250.0
LAYER, FIRST, SECOND, QUESTION = "You are the layer.", "Answer in French.", "Be brief.", "What is a fugue?"
MESSAGES = [
    {"role": "system", "content": FIRST},
    {"role": "developer", "content": [{"type": "text", "text": SECOND}]},
    {"role": "user", "content": QUESTION},
]
ROUTE = Route("local", "any", 8192, 1024)

# Templates that are part of llama.cpp, named as it names them.
SHIPPED = (
    "chatml",
    "llama2",
    "llama3",
    "mistral-v1",
    "mistral-v7",
    "gemma",
    "deepseek3",
    "command-r",
    "gpt-oss",
    "kimi-k2",
)
# What templates of newer models do with a second system message.
TURNS = "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}] {{ m.content }}{% endif %}{% endfor %}"
STRICT = {
    "raises": "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}" + TURNS,
    "keeps the first": "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}" + TURNS,
    "keeps the last": "{% set ns = namespace(text='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.text = m.content %}{% endif %}{% endfor %}{{ ns.text }}" + TURNS,
}
pytestmark = pytest.mark.release(reason="a model is loaded for each template")


def written(system: Any) -> Any:
    """The body that goes upstream, as the service writes it for a route with this setting of `system`."""
    route = Route("local", "any", 8192, 1024, system=system)
    chat = parse_chat(json.dumps({"messages": MESSAGES}).encode())
    ask = asyncio.run(ask_of(chat, Character(LAYER), prompt_of(100, 400), Paid(1024), Plan.of("forte", (route,))))
    dialect = DIALECTS["llamacpp"]
    return json.loads(RequestWriter(dialect).write(route, ask))


@pytest.fixture(scope="module")
def prompts() -> dict[str, dict[str, str]]:
    """By template: the prompt of one joined system message, and of each one apart."""
    templates = dict.fromkeys(SHIPPED) | STRICT
    given = {"templates": templates, "bodies": {"one": written("one"), "each": written("each")}}
    done = subprocess.run(
        [sys.executable, "-m", "tests.parts.embedded.templates"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=WAIT_S,
        check=True,
    )
    made: dict[str, dict[str, str]] = json.loads(done.stdout)
    return made


@pytest.mark.parametrize("template", [*SHIPPED, *STRICT])
def test_layer_and_guidance_reach_the_model(prompts: dict[str, dict[str, str]], template: str) -> None:
    """The prompt has the layer, the client's guidance and the question, in this order and once each."""
    prompt = prompts[template]["one"]
    places = [prompt.find(text) for text in (LAYER, FIRST, SECOND, QUESTION)]
    assert -1 not in places, prompt
    assert places == sorted(places)
    assert [prompt.count(text) for text in (LAYER, FIRST, SECOND, QUESTION)] == [1, 1, 1, 1]


@pytest.mark.parametrize("template", STRICT)
def test_separate_system_messages_would_be_lost(prompts: dict[str, dict[str, str]], template: str) -> None:
    """These templates do refuse or drop a second system message, so the test above can fail."""
    prompt = prompts[template]["each"]
    assert prompt == "refused" or not all(text in prompt for text in (LAYER, FIRST, SECOND))
