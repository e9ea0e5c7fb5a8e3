"""Writing the body of a request: sampling fields, tools and the route's settings, in each dialect."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from cadenza.core.records import Route
from cadenza.upstreams.base import Ask
from cadenza.upstreams.dialects import DIALECTS, PLAIN, Dialect
from cadenza.upstreams.writer import RequestWriter

ROUTE = Route("acme", "large", 100_000, 1000)
USER = Raw(b'{"role":"user","content":"Hi"}')
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": None, "parameters": {"default": None}}}
    for name in ("look", "buy")
]
NAMED = {"type": "function", "function": {"name": "buy"}}


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def write(dialect: Dialect | str, route: Route = ROUTE, **fields: Any) -> Any:
    """The body for an ask with these sampling fields, tools or begun answer."""
    found = DIALECTS[dialect] if isinstance(dialect, str) else dialect
    limit, stream, begun = fields.pop("max_tokens", None), fields.pop("stream", False), fields.pop("begun", "")
    tools = {name: raw(value) for name, value in fields.items() if name.startswith("tool")}
    sampling = {name: raw(value) for name, value in fields.items() if name not in tools}
    ask = Ask([USER], sampling, limit, stream, tools=tools, begun=begun)
    return json.loads(RequestWriter(found).write(route, ask))


def routed(**settings: Any) -> Route:
    return msgspec.structs.replace(ROUTE, **settings)


@pytest.mark.parametrize(
    ("dialect", "given", "sent"),
    [
        ("tgi", {"top_p": 1}, {}),
        ("tgi", {"top_p": 1.0}, {}),
        ("tgi", {"top_p": 0.9}, {"top_p": 0.9}),
        ("plain", {"top_p": 1}, {"top_p": 1}),
        ("tgi", {"stop": "END"}, {"stop": ["END"]}),
        ("tgi", {"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
        ("plain", {"stop": "END"}, {"stop": "END"}),
        ("mistral", {"seed": 7}, {"random_seed": 7}),
        ("kimi", {"seed": 7, "logit_bias": {"1": 2}, "temperature": 1}, {"temperature": 1}),
        ("groq", {"seed": 7, "logit_bias": {"1": 2}}, {"seed": 7}),
        ("gemini", {"seed": 7, "presence_penalty": 1, "frequency_penalty": 1, "stop": "x"}, {"stop": "x"}),
    ],
)
def test_sampling_fields(dialect: str, given: dict[str, Any], sent: dict[str, Any]) -> None:
    """A field that the upstream refuses is left out, renamed or written in another form; the rest is unchanged."""
    body = write(dialect, **given)
    assert {name: value for name, value in body.items() if name not in ("model", "messages")} == sent


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_asks_for_its_usage(dialect: str) -> None:
    """A stream asks for its usage, unless the upstream refuses the field and sends usage anyway."""
    options = write(dialect, stream=True).get("stream_options")
    assert options == (dict(DIALECTS[dialect].stream_options) or None)
    assert options is None or options["include_usage"] is True
    assert (options is None) == (dialect == "mistral")


@pytest.mark.parametrize("dialect", ["llamacpp", "ollama"])
def test_a_named_tool_becomes_the_only_one(dialect: str) -> None:
    """Where `tool_choice` cannot name a tool, only that tool is offered and a call is required."""
    body = write(dialect, tools=TOOLS, tool_choice=NAMED)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["buy"]
    assert body["tool_choice"] == "required"


@pytest.mark.parametrize("choice", ["auto", "none", "required", {"type": "allowed_tools"}])
def test_another_choice_is_sent_as_it_is(choice: Any) -> None:
    """Any choice but a named function is unchanged, and so are the tools."""
    body = write("ollama", tools=TOOLS, tool_choice=choice)
    assert (body["tools"], body["tool_choice"]) == (TOOLS, choice)


@pytest.mark.parametrize("dialect", ["sglang", "llamacpp", "groq", "mistral"])
def test_tools_without_nulls(dialect: str) -> None:
    """Null fields of a function are left out where they are refused; the schema keeps its nulls."""
    tool = write(dialect, tools=TOOLS)["tools"][0]
    assert tool == {"type": "function", "function": {"name": "look", "parameters": {"default": None}}}


def test_a_custom_tool_is_unchanged() -> None:
    """A tool without a function passes every rule about functions."""
    custom = {"type": "custom", "custom": {"name": "sing", "description": None}}
    strict = Dialect(has_nulls=False, named_choice=False)
    assert write(strict, tools=[custom, TOOLS[0]], tool_choice="auto")["tools"][0] == custom
    only_named = write(strict, tools=[custom, *TOOLS], tool_choice=NAMED)["tools"]
    assert [tool["function"]["name"] for tool in only_named] == ["buy"]


def test_tools_are_sent_byte_for_byte() -> None:
    """Without a rule the tools are not decoded."""
    tools = Raw(b'[ {"type" : "function","function":{"name":"look","strict":null}} ]')
    written = RequestWriter(PLAIN).write(ROUTE, Ask([USER], {}, None, stream=False, tools={"t": tools}))
    assert bytes(tools) in written


@pytest.mark.parametrize(
    ("dialect", "message"),
    [("deepseek", {"prefix": True}), ("kimi", {"partial": True}), ("openrouter", {}), ("ollama", {}), ("tgi", {})],
)
def test_a_begun_answer_is_marked(dialect: str, message: dict[str, Any]) -> None:
    """The last message has the mark of the dialect, and the body has no field about continuing."""
    body = write(dialect, begun="Once upon")
    assert body["messages"][-1] == {"role": "assistant", "content": "Once upon", **message}
    assert not {"continue_final_message", "add_generation_prompt"} & body.keys()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_route_names_its_limit(dialect: str) -> None:
    """`max_tokens_field` of a route wins over the dialect's name."""
    for name in ("max_tokens", "max_completion_tokens"):
        body = write(dialect, routed(max_tokens_field=name), max_tokens=7)
        assert {field: value for field, value in body.items() if field.startswith("max_")} == {name: 7}


def test_a_route_always_sends_a_limit() -> None:
    """With `always_send_max_tokens` the route's longest answer is sent if the client gave no limit."""
    route = routed(always_send_max_tokens=True)
    assert write("together", route)["max_tokens"] == ROUTE.max_output_tokens
    assert write("together", route, max_tokens=7)["max_tokens"] == 7
    assert "max_tokens" not in write("together")


def test_a_route_omits_fields() -> None:
    """`omit` leaves out fields of the client and of the dialect; it wins over `fields`."""
    route = routed(omit=("temperature", "stream_options", "top_k"), fields='{"top_k": 4}')
    body = write("plain", route, temperature=1, seed=7, stream=True)
    assert body.keys() == {"model", "messages", "seed", "stream"}


@pytest.mark.parametrize("dialect", ["openai", "openrouter"])
def test_no_setting_turns_zero_retention_off(dialect: str) -> None:
    """The fields that ask for zero retention win over every setting of a route."""
    adds = DIALECTS[dialect].adds
    route = routed(fields=json.dumps(dict.fromkeys(adds, "theirs")), omit=tuple(adds))
    assert {name: write(dialect, route)[name] for name in adds} == dict(adds)
