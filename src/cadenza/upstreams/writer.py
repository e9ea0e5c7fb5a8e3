"""Writes the body of a chat request in the dialect of its upstream.

The client's messages, tools and sampling fields are raw JSON and are copied as they are. They are decoded only if the
dialect or the route wants them changed.
"""

import msgspec

from cadenza.core.records import Route
from cadenza.upstreams.base import Ask
from cadenza.upstreams.dialects import Dialect
from cadenza.upstreams.message_rules import MessageRules, without_nulls

Body = dict[str, object]
FORCED = msgspec.Raw(b'"required"')
_DECODER = msgspec.json.Decoder()
_TOOLS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_NAME = msgspec.json.Decoder(dict[str, object])


class RequestWriter:
    """Writes requests in one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._rules = MessageRules(dialect)
        self._changes_sampling = not (dialect.has_full_top_p and dialect.has_single_stop)
        self._changes_names = bool(dialect.renames or dialect.omits or dialect.adds)

    def write(self, route: Route, ask: Ask) -> bytes:
        return msgspec.json.encode(self._fields(route, ask))

    def write_large(self, route: Route, ask: Ask) -> list[bytes | memoryview]:
        """The same bytes in pieces: raw JSON is not copied, since copying 32 MiB holds the event loop for 40 ms."""
        pieces: list[bytes | memoryview] = []
        for name, value in self._fields(route, ask).items():
            pieces.append((b"," if pieces else b"{") + msgspec.json.encode(name) + b":")
            if isinstance(value, list):
                pieces.append(b"[")
                for item in value:
                    pieces += [_piece(item), b","]
                pieces[-1] = b"]" if value else b"[]"
            else:
                pieces.append(_piece(value))
        return [*pieces, b"}"]

    def _fields(self, route: Route, ask: Ask) -> Body:
        dialect, sampling = self._dialect, ask.sampling
        messages = self._rules.apply(ask.messages_for(route) if ask.separate else ask.messages, route)
        if self._changes_sampling or ask.extra:
            sampling = _sampling(dialect, route, ask)
        body: Body = {"model": route.model, "messages": messages, **sampling}
        if ask.tools:
            body.update(_tools(dialect, ask))
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
        if self._changes_names or route.fields or route.omit:
            self._change_names(route, body)
        return body

    def _change_names(self, route: Route, body: Body) -> None:
        """Rename, add and leave out fields, as the dialect and the route want it."""
        dialect = self._dialect
        for name, other in dialect.renames.items():
            if name in body:
                body[other] = body.pop(name)
        if route.fields:
            body |= msgspec.json.decode(route.fields)
        for name in (*dialect.omits, *route.omit):
            body.pop(name, None)
        body |= dialect.adds


def _piece(value: object) -> bytes | memoryview:
    return memoryview(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)


def _sampling(dialect: Dialect, route: Route, ask: Ask) -> dict[str, msgspec.Raw]:
    fields = ask.sampling
    if ask.extra and route.passes:
        fields = {**{name: ask.extra[name] for name in route.passes if name in ask.extra}, **fields}
    if not dialect.has_full_top_p and _DECODER.decode(fields.get("top_p", b"0")) == 1:
        fields = {name: raw for name, raw in fields.items() if name != "top_p"}
    if not dialect.has_single_stop and bytes(fields.get("stop", b"")).startswith(b'"'):
        fields = fields | {"stop": msgspec.Raw(b"[%b]" % bytes(fields["stop"]))}
    return fields


def _tools(dialect: Dialect, ask: Ask) -> dict[str, msgspec.Raw]:
    """The fields of the tool path. They are changed only for an upstream that does not understand them as they are."""
    fields = ask.tools
    if dialect.has_nulls and dialect.named_choice:
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
