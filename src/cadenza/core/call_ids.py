"""Ids of tool calls: one of ours contains the upstream's id, which is restored when the client sends it back. Pure.

Nothing is stored, and any process can do it. An id is `call_` and at least 24 characters of base64url: a checksum, the
form of the upstream's id, some random bytes, and that id, packed and masked by the checksum. OpenAI refuses ids of
more than 40 characters, so those of the usual upstreams stay within them. An id of this form that
comes from an upstream, which is then another Cadenza, is passed to the client unchanged. When the client sends it back,
it is unwrapped here, and the other Cadenza gets the id of its own upstream, which it passes on unchanged.
"""

import base64
import binascii
import secrets
import string
import zlib
from itertools import cycle, product

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
    return bytes(byte ^ mask for byte, mask in zip(body, cycle(check), strict=False))


def _check(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4)[:CHECK_BYTES]
