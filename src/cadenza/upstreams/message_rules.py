"""Rewrites the messages of a request for an upstream that does not accept them as clients send them.

Messages are raw JSON. They are decoded only for a dialect or a route with rules, and then one by one.
"""

import base64
import hashlib
import re
from collections.abc import Sequence

import msgspec

from cadenza.core.content import Content
from cadenza.core.records import Route
from cadenza.upstreams.dialects import Dialect

Fields = dict[str, msgspec.Raw]
NULL = b"null"
EMPTY = msgspec.Raw(b'""')
NOTHING = (NULL, b'""')
ASSISTANT = b'"assistant"'
CALL_FIELDS = frozenset({"id", "type", "function", "custom"})
FUNCTION_FIELDS = frozenset({"name", "arguments"})
NEW_ID_CHARS = 9  # of letters and digits: every upstream accepts these

_FIELDS = msgspec.json.Decoder(Fields)
_ITEMS = msgspec.json.Decoder(list[Fields])


class _Part(Content, msgspec.Struct):
    type: str
    text: str = ""


_PARTS = msgspec.json.Decoder(list[_Part])


class MessageRules:
    """What one dialect wants changed in messages."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._call_ids = re.compile(dialect.call_ids) if dialect.call_ids else None
        self._looks_at_all = (
            bool(dialect.message_fields or dialect.reasoning_filler is not None)
            or not (dialect.has_nulls and dialect.has_parts and dialect.has_text_with_calls)
            or dialect.null_content != "null"
        )
        self._is_needed = self._looks_at_all or dialect.reasoning != "as_sent" or bool(dialect.call_ids)

    def apply(self, messages: Sequence[msgspec.Raw], route: Route) -> Sequence[msgspec.Raw]:
        if not self._is_needed and route.reasoning == "pass":
            return messages
        return self._rewrite_all(messages, "drop" if route.reasoning == "drop" else self._dialect.reasoning)

    def _rewrite_all(self, messages: Sequence[msgspec.Raw], reasoning: str) -> Sequence[msgspec.Raw]:
        if self._looks_at_all:
            return [self._rewrite(raw, reasoning) for raw in messages]
        marks = (b'"reasoning', b'"tool_call') if self._call_ids else (b'"reasoning',)
        return [self._rewrite(raw, reasoning) if any(mark in bytes(raw) for mark in marks) else raw for raw in messages]

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
        if self._call_ids and _has(fields, "tool_call_id"):
            fields["tool_call_id"] = _fitting_id(fields["tool_call_id"], self._call_ids)
        return _raw(fields)

    def _rewrite_assistant(self, fields: Fields, reasoning: str) -> None:
        dialect = self._dialect
        if reasoning != "as_sent":
            _change_reasoning(fields, reasoning)
        if reasoning == "drop" and not (_has(fields, "content") or _has(fields, "tool_calls")):
            fields["content"] = EMPTY  # the message may have had nothing but reasoning
        if dialect.reasoning_filler is not None and reasoning != "drop":
            fields.setdefault(reasoning, _raw(dialect.reasoning_filler))
        if not _has(fields, "tool_calls"):
            fields.pop("tool_calls", None)
            if self._looks_at_all and _has(fields, "refusal") and not _has(fields, "content"):
                fields["content"] = fields.pop("refusal")  # moved: a copy would not be counted
        elif dialect.message_fields or self._call_ids:
            fields["tool_calls"] = self._rewrite_calls(fields["tool_calls"])
        self._rewrite_content(fields)

    def _rewrite_content(self, fields: Fields) -> None:
        dialect, has_calls = self._dialect, "tool_calls" in fields
        if not _has(fields, "content") and dialect.null_content != "null":
            fields["content"] = EMPTY
            if dialect.null_content == "omit" and has_calls:
                del fields["content"]
        if has_calls and not dialect.has_text_with_calls:
            fields.pop("content", None)

    def _rewrite_calls(self, raw: msgspec.Raw) -> msgspec.Raw:
        calls = _ITEMS.decode(raw)
        if extra := self._dialect.message_fields:
            calls = [{name: call[name] for name in call if name in CALL_FIELDS | extra} for call in calls]
            for call in calls:
                if "function" in call:
                    call["function"] = _only(call["function"], FUNCTION_FIELDS)
        if self._call_ids:
            calls = [call | {"id": _fitting_id(call["id"], self._call_ids)} for call in calls]
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
    given = [fields.pop(known, EMPTY) for known in ("reasoning_content", "reasoning")]
    text = next((raw for raw in given if bytes(raw) not in NOTHING), None)
    if text and name != "drop":
        fields[name] = text
    if name != "reasoning" or not _has(fields, "reasoning_details"):
        fields.pop("reasoning_details", None)


def _has(fields: Fields, name: str) -> bool:
    """Whether the field has a value: not null, and not an empty string."""
    return bytes(fields.get(name, EMPTY)) not in NOTHING


def _only(raw: msgspec.Raw, names: frozenset[str]) -> msgspec.Raw:
    return _raw({name: value for name, value in _FIELDS.decode(raw).items() if name in names})


def _joined(raw: msgspec.Raw) -> msgspec.Raw:
    """The text of the parts, if all of them are text."""
    parts = _PARTS.decode(raw)
    return _raw("".join([part.text for part in parts])) if all(part.type == "text" for part in parts) else raw


def _fitting_id(raw: msgspec.Raw, fitting: re.Pattern[str]) -> msgspec.Raw:
    """The id if it has the right form, else one made from it. The same id always becomes the same one."""
    call_id = msgspec.json.decode(raw, type=str)
    if fitting.fullmatch(call_id):
        return raw
    digest = base64.b32encode(hashlib.sha256(call_id.encode()).digest()).decode()
    return _raw(digest[:NEW_ID_CHARS])


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
