"""Rewrites the messages of a request for an upstream that does not take them as clients send them.

Messages are raw JSON. They are decoded only for a dialect or a route with rules, and then one by one.
"""

import base64
import hashlib
import re
from collections.abc import Sequence

import msgspec

from cadenza.core.dialect import Dialect
from cadenza.core.records import Route

Fields = dict[str, msgspec.Raw]
NULL = b"null"
EMPTY = msgspec.Raw(b'""')
ASSISTANT = b'"assistant"'
CALL_FIELDS = frozenset({"id", "type", "function", "extra_content"})
ALPHANUMERIC = re.compile(r"[A-Za-z0-9]+")

_FIELDS = msgspec.json.Decoder(Fields)
_ITEMS = msgspec.json.Decoder(list[Fields])


class _Part(msgspec.Struct):
    type: str
    text: str = ""


_PARTS = msgspec.json.Decoder(list[_Part])


class MessageRules:
    """What one dialect wants changed in messages."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._looks_at_all = (
            bool(dialect.message_fields or dialect.call_id_chars or dialect.reasoning_filler is not None)
            or not (dialect.has_nulls and dialect.has_parts)
            or dialect.null_content != "null"
        )

    def apply(self, messages: Sequence[msgspec.Raw], route: Route) -> Sequence[msgspec.Raw]:
        reasoning = "drop" if route.reasoning == "drop" else self._dialect.reasoning
        if self._looks_at_all:
            return [self._rewrite(raw, reasoning) for raw in messages]
        if reasoning == "as_sent":
            return messages
        return [self._rewrite(raw, reasoning) if b'"reasoning' in bytes(raw) else raw for raw in messages]

    def _rewrite(self, raw: msgspec.Raw, reasoning: str) -> msgspec.Raw:
        dialect, fields = self._dialect, _FIELDS.decode(raw)
        if not dialect.has_nulls:
            fields = {name: value for name, value in fields.items() if name == "content" or bytes(value) != NULL}
        if not dialect.has_parts and bytes(fields.get("content", EMPTY)).startswith(b"["):
            fields["content"] = _joined(fields["content"])
        if bytes(fields["role"]) == ASSISTANT:
            self._rewrite_assistant(fields, reasoning)
        if dialect.message_fields:
            kept = dialect.message_fields | {reasoning}
            fields = {name: value for name, value in fields.items() if name in kept}
        if dialect.call_id_chars and "tool_call_id" in fields:
            fields["tool_call_id"] = _short_id(fields["tool_call_id"], dialect.call_id_chars)
        return _raw(fields)

    def _rewrite_assistant(self, fields: Fields, reasoning: str) -> None:
        dialect = self._dialect
        if reasoning != "as_sent":
            _change_reasoning(fields, reasoning)
        if dialect.reasoning_filler is not None and reasoning != "drop":
            fields.setdefault(reasoning, _raw(dialect.reasoning_filler))
        if bytes(fields.get("content", msgspec.Raw(NULL))) in (NULL, b'""') and dialect.null_content != "null":
            fields["content"] = EMPTY
            if dialect.null_content == "omit" and "tool_calls" in fields:
                del fields["content"]
        if "tool_calls" in fields and (dialect.message_fields or dialect.call_id_chars):
            fields["tool_calls"] = self._rewrite_calls(fields["tool_calls"])

    def _rewrite_calls(self, raw: msgspec.Raw) -> msgspec.Raw:
        calls = [{name: value for name, value in call.items() if name in CALL_FIELDS} for call in _ITEMS.decode(raw)]
        if chars := self._dialect.call_id_chars:
            calls = [call | {"id": _short_id(call["id"], chars)} for call in calls]
        return _raw(calls)


def without_nulls(tools: msgspec.Raw) -> msgspec.Raw:
    """The tools without the null fields of their functions. Their schemas are left alone: a null may mean something."""
    kept = []
    for tool in _ITEMS.decode(tools):
        if "function" in tool:
            function = {name: raw for name, raw in _FIELDS.decode(tool["function"]).items() if bytes(raw) != NULL}
            tool["function"] = _raw(function)
        kept.append(tool)
    return _raw(kept)


def _change_reasoning(fields: Fields, name: str) -> None:
    """Leave the reasoning out, or give it the name that the upstream knows."""
    given = [fields.pop(known) for known in ("reasoning_content", "reasoning") if known in fields]
    details = fields.pop("reasoning_details", None)
    if given and name != "drop":
        fields[name] = given[0]
    if details is not None and name == "reasoning":
        fields["reasoning_details"] = details


def _joined(raw: msgspec.Raw) -> msgspec.Raw:
    """The text of the parts, if all of them are text."""
    parts = _PARTS.decode(raw)
    return _raw("".join([part.text for part in parts])) if all(part.type == "text" for part in parts) else raw


def _short_id(raw: msgspec.Raw, chars: int) -> msgspec.Raw:
    """The id if it has the right form, else one made from it. The same id always becomes the same one."""
    call_id = msgspec.json.decode(raw, type=str)
    if len(call_id) == chars and ALPHANUMERIC.fullmatch(call_id):
        return raw
    digest = base64.b32encode(hashlib.sha256(call_id.encode()).digest()).decode()
    return _raw(digest[:chars])


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
