"""Tool calls: one form for the calls of every upstream. Pure.

For the client a call has a sequential index, an id of ours, and its name on its first part only. Upstreams differ: all
calls have index 0, ids are missing, repeated or on every part, names come in pieces, calls come whole. All of that is
normalized here.

A call is of a function, whose arguments are JSON, or of a custom tool, whose input is free text.

Our id of a call contains the upstream's id, which is restored when the client sends it back, by any process and without
storing anything. An id is `call_` and at least 24 characters of base64url: a checksum, the form of the upstream's id,
some random bytes, and that id, packed and masked by the checksum. OpenAI refuses ids of more than 40 characters, so
those of the usual upstreams stay within them. If the upstream is another Cadenza, its id is passed to the client
unchanged; when the client sends it back, the other Cadenza gets its own upstream's id and passes it on.
"""

import base64
import binascii
import re
import secrets
import string
import zlib
from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

import msgspec

from cadenza.core.content import Content

CallType = Literal["function", "custom"]

PREFIX = "call_"
UPSTREAM_ID_CHARS_MAX = 256
CHECK_BYTES = 3
RANDOM_BYTES, RANDOM_BYTES_MAX = 3, 15
FITTING_BYTES = 25 - CHECK_BYTES - 1  # of random bytes and a packed id: 25 bytes are 34 characters
LONG_CHARS, LONG_BYTES, LONG_CHECK_BYTES = 32, 26, 2  # llama.cpp's ids: 26 bytes are 35 characters

PREFIXES = (PREFIX, "chatcmpl-tool-", "toolu_", "tooluse_", "functions.", "function-call-", "")
ALPHABETS = (string.digits + "abcdef-", string.ascii_letters + string.digits + "_-.:")
# How an upstream's id begins, and the characters that follow. Its form is its place here; any other id is not packed.
FORMS = tuple(product(PREFIXES, ALPHABETS))
UNPACKED = len(FORMS)
# What tells whether JSON is complete, and a backslash with the character that it escapes.
STRUCTURE = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)


class ToolCallPart(Content, msgspec.Struct, frozen=True):
    """A part of a call from an upstream, in one form for all dialects. `index` is the upstream's own, if given.

    `arguments` is the input of a custom tool. `extra_content` is data that the upstream wants back with the call:
    Gemini puts a signature there, and refuses the next turn without it.
    """

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    type: CallType = "function"
    extra_content: dict[str, Any] | None = None


class ToolCallDelta(Content, msgspec.Struct, frozen=True):
    """A part of a call for the client. Only the first part of each call has `id` and `name`."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""
    type: CallType = "function"
    extra_content: dict[str, Any] | None = None


class ToolCallNormalizer:
    """Assigns the parts of a reply to calls, which are numbered in the order in which they first appear."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._begun = 0  # how many of them have begun for the client: calls begin in the order of their numbers
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def take(self, parts: Sequence[ToolCallPart]) -> list[ToolCallDelta]:
        """The deltas that can be sent now. A call begins with its first arguments: by then its name is complete."""
        if len(parts) == 1 and (call := self._continued(parts[0])):
            call.take(parts[0])
            return [call.next_delta()] if call.waiting else []
        changed: dict[int, _Call] = {}
        for part in parts:
            call = self._find_or_begin(part)
            call.take(part)
            changed[call.index] = call
        deltas = [call.next_delta() for call in changed.values() if call.id and (call.waiting or call.extra_content)]
        return deltas + self._begin_calls(is_over=False)

    def _continued(self, part: ToolCallPart) -> "_Call | None":
        """The call that this part has only arguments of, as most have. None if a call has not begun for the client."""
        if part.index is None or part.id or part.name or part.extra_content or self._begun < len(self._calls):
            return None
        return self._by_index.get(part.index)

    def finish(self) -> list[ToolCallDelta]:
        """The deltas that are left: calls without arguments, and calls that waited behind them."""
        return self._begin_calls(is_over=True)

    def _begin_calls(self, *, is_over: bool) -> list[ToolCallDelta]:
        deltas = []
        while self._begun < len(self._calls):
            call = self._calls[self._begun]
            if not call.waiting and not is_over:
                break
            call.id = wrap_id(call.upstream_id if self._by_id.get(call.upstream_id) is call else "")
            deltas.append(call.first_delta())
            self._begun += 1
        return deltas

    def _find_or_begin(self, part: ToolCallPart) -> "_Call":
        call = self._find(part)
        if call is None:
            call = _Call(len(self._calls), part.id, part.type)
            self._calls.append(call)
        if part.id:
            self._by_id.setdefault(part.id, call)
        if part.index is not None:
            self._by_index[part.index] = call
        return call

    def _find(self, part: ToolCallPart) -> "_Call | None":
        """The call that a part belongs to; None if it begins a new one."""
        last = self._calls[-1] if self._calls else None
        current = last if part.index is None else self._by_index.get(part.index)
        if current is None:
            return None
        if part.id and part.id != current.upstream_id:
            if current.upstream_id or current.is_whole:
                return self._by_id.get(part.id)  # another call with the same index
            current.upstream_id = part.id
        if part.name and current.is_whole and (part.arguments.strip() or part.name != current.name):
            return None  # the last call is complete: this is the next one with the same index
        return current


class _Call:
    """One call whose parts are arriving."""

    def __init__(self, index: int, upstream_id: str, type_: CallType) -> None:
        self.index = index
        self.upstream_id = upstream_id
        self.type = type_
        self.id = ""  # ours, once the call has begun for the client
        self.name = ""
        self.waiting = ""  # arguments that were not sent yet
        self.extra_content: dict[str, Any] | None = None  # likewise
        self.is_whole = False
        self._open = 0
        self._in_string = False
        self._is_escaped = False

    def take(self, part: ToolCallPart) -> None:
        if part.name and not self.id and part.name != self.name:
            self.name += part.name
        self.waiting += part.arguments
        self.extra_content = part.extra_content or self.extra_content
        if self.type == "function":
            self._follow(part.arguments)

    def first_delta(self) -> ToolCallDelta:
        delta = self.next_delta()
        arguments = "{}" if self.type == "function" and not delta.arguments else delta.arguments
        return msgspec.structs.replace(delta, arguments=arguments, id=self.id, name=self.name)

    def next_delta(self) -> ToolCallDelta:
        arguments, self.waiting = self.waiting, ""
        extra_content, self.extra_content = self.extra_content, None
        return ToolCallDelta(self.index, arguments, "", "", self.type, extra_content)

    def _follow(self, arguments: str) -> None:
        """Track whether the arguments so far are a complete JSON value."""
        for found in STRUCTURE.finditer("\\" + arguments if self._is_escaped else arguments):
            mark = found[0]
            if mark[0] == "\\":
                self._is_escaped = mark == "\\"  # what it escapes is yet to come
            elif mark == '"':
                self._in_string = not self._in_string
            elif self._in_string:
                continue
            elif mark in "{[":
                self._open += 1
            else:
                self._open -= 1
                self.is_whole = self._open == 0


def wrap_id(upstream_id: str) -> str:
    """An id of ours that contains the upstream's id, if there is one of reasonable length."""
    if len(upstream_id) > UPSTREAM_ID_CHARS_MAX:
        upstream_id = ""
    if _find_inner(upstream_id) is not None:
        return upstream_id
    if len(upstream_id) == LONG_CHARS and (packed := _from_base64(upstream_id)):
        return _to_id(_check(packed)[:LONG_CHECK_BYTES], packed)
    form, packed = _pack(upstream_id)
    is_fitting = len(packed) < FITTING_BYTES
    random_bytes = min(FITTING_BYTES - len(packed), RANDOM_BYTES_MAX) if is_fitting else RANDOM_BYTES
    head = bytes([form << 4 | random_bytes])
    body = head + secrets.token_bytes(random_bytes) + packed
    return _to_id(_check(body), body)


def unwrap_id(call_id: str) -> str:
    """The upstream's id inside an id of ours; any other id is returned unchanged."""
    return _find_inner(call_id) or call_id


def _find_inner(call_id: str) -> str | None:
    """The upstream's id inside an id of ours: empty if it contains none. None if the id is not ours."""
    raw = _from_base64(call_id.removeprefix(PREFIX)) if call_id.startswith(PREFIX) else b""
    if len(raw) == LONG_BYTES:
        check, packed = raw[:LONG_CHECK_BYTES], _masked(raw[:LONG_CHECK_BYTES], raw[LONG_CHECK_BYTES:])
        if _check(packed)[:LONG_CHECK_BYTES] == check:
            return base64.urlsafe_b64encode(packed).decode()
    elif len(raw) > CHECK_BYTES:
        check, body = raw[:CHECK_BYTES], _masked(raw[:CHECK_BYTES], raw[CHECK_BYTES:])
        if _check(body) == check:
            return _unpack(body[0] >> 4, body[1 + (body[0] & 15) :])
    return None


def _pack(text: str) -> tuple[int, bytes]:
    """The form of an id, and the id in as few bytes as its characters allow."""
    for form, (prefix, alphabet) in enumerate(FORMS):
        rest = text.removeprefix(prefix)
        if text.startswith(prefix) and rest and set(alphabet).issuperset(rest):
            number = 1  # so that leading zeros count
            for character in rest:
                number = number * len(alphabet) + alphabet.index(character)
            return form, number.to_bytes((number.bit_length() + 7) // 8)
    return UNPACKED, text.encode()


def _unpack(form: int, packed: bytes) -> str | None:
    if form >= UNPACKED:
        try:
            return packed.decode() if form == UNPACKED else None
        except ValueError:
            return None
    prefix, alphabet = FORMS[form]
    number, characters = int.from_bytes(packed), list[str]()
    while number > 1:
        number, digit = divmod(number, len(alphabet))
        characters.append(alphabet[digit])
    return prefix + "".join(reversed(characters))


def _to_id(check: bytes, body: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(check + _masked(check, body)).rstrip(b"=").decode()


def _from_base64(text: str) -> bytes:
    """The bytes; none if it is not base64url in its one form."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
    return raw if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() == text else b""


def _masked(check: bytes, body: bytes) -> bytes:
    """The bytes such that no part of an upstream's id can be read in them; the same again restores them."""
    size, mask = len(body), (check * (len(body) // len(check) + 1))[: len(body)]
    return (int.from_bytes(body) ^ int.from_bytes(mask)).to_bytes(size)


def _check(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4)[:CHECK_BYTES]


def text_of_calls(deltas: list[ToolCallDelta]) -> str:
    """The text of tool calls that counts as output: names and arguments."""
    return "".join(delta.name + delta.arguments for delta in deltas)
