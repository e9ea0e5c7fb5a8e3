"""Writes the body of a chat request in the dialect of its upstream.

The client's messages, tools and sampling fields are raw JSON and are copied as they are. They are decoded only if the
dialect or the route wants them changed.
"""

import msgspec

from cadenza.core.dialect import Dialect
from cadenza.core.records import Route
from cadenza.upstreams.base import Ask
from cadenza.upstreams.message_rules import MessageRules, without_nulls

Body = dict[str, object]
FORCED = msgspec.Raw(b'"required"')
_DECODER = msgspec.json.Decoder()
_TOOLS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_NAME = msgspec.json.Decoder(dict[str, object])


def write_request(dialect: Dialect, rules: MessageRules, route: Route, ask: Ask) -> bytes:
    messages = rules.apply(ask.messages_for(route), route)
    body: Body = {"model": route.model, "messages": messages, **_sampling(dialect, ask), **_tools(dialect, ask)}
    if ask.begun:
        begun = {"role": "assistant", "content": ask.begun, **dialect.continue_message}
        body["messages"] = [*messages, begun]
        body.update(dialect.continue_fields)
    if (limit := ask.output_limit(route)) is not None:
        body[route.max_tokens_field or dialect.limit_field] = limit
    if ask.stream:
        body["stream"] = True
        if dialect.stream_options:
            body["stream_options"] = dict(dialect.stream_options)
    for name, other in dialect.renames.items():
        if name in body:
            body[other] = body.pop(name)
    if route.fields:
        body |= msgspec.json.decode(route.fields)
    for name in (*dialect.omits, *route.omit):
        body.pop(name, None)
    body.update(dialect.adds)
    return msgspec.json.encode(body)


def _sampling(dialect: Dialect, ask: Ask) -> dict[str, msgspec.Raw]:
    fields = ask.sampling
    if not dialect.has_full_top_p and _DECODER.decode(fields.get("top_p", b"0")) == 1:
        fields = {name: raw for name, raw in fields.items() if name != "top_p"}
    if not dialect.has_single_stop and bytes(fields.get("stop", b"")).startswith(b'"'):
        fields = fields | {"stop": msgspec.Raw(b"[%b]" % bytes(fields["stop"]))}
    return fields


def _tools(dialect: Dialect, ask: Ask) -> dict[str, msgspec.Raw]:
    """The fields of the tool path. They are changed only for an upstream that does not understand them as they are."""
    fields = ask.tools
    if not fields or (dialect.has_nulls and dialect.named_choice):
        return fields
    if not dialect.has_nulls:
        fields = fields | {"tools": without_nulls(fields["tools"])}
    choice = _DECODER.decode(fields.get("tool_choice", FORCED))
    if dialect.named_choice or not isinstance(choice, dict) or choice.get("type") != "function":
        return fields
    wanted = [tool for tool in _TOOLS.decode(fields["tools"]) if _name_of(tool) == choice["function"]["name"]]
    return fields | {"tools": msgspec.Raw(msgspec.json.encode(wanted)), "tool_choice": FORCED}


def _name_of(tool: dict[str, msgspec.Raw]) -> object:
    return _NAME.decode(tool["function"]).get("name") if "function" in tool else None
