"""`file_data` of a file part, as it stands in the client's JSON, to the bytes of the file. Runs in the child only."""

import binascii
from urllib.parse import unquote_to_bytes

import msgspec

from cadenza.grounding.files.records import Unreadable

NOT_BASE64 = "its file_data is neither a data URL nor base64"
STANDARD = bytes.maketrans(b"-_", b"+/")
BLANKS = b" \t\r\n\f\v"
_STRING = msgspec.json.Decoder(str)


def decode_file_data(json_string: bytes | bytearray) -> tuple[str, bytes]:
    """The media type, if the data URL has one, and the bytes. Raises Unreadable."""
    try:
        text = _STRING.decode(json_string)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unreadable("its file_data is not a JSON string") from None
    media_type, data = _decode_url(text) if text[:5].lower() == "data:" else ("", _decode_base64(text))
    if not data:
        raise Unreadable("it is empty")
    return media_type, data


def _decode_url(url: str) -> tuple[str, bytes]:
    comma = url.find(",")
    if comma < 0:
        raise Unreadable("its data URL has no comma")
    media_type, *parameters = (part.strip().lower() for part in url[5:comma].split(";"))
    payload = url[comma + 1 :]
    if "base64" not in parameters:
        return media_type, unquote_to_bytes(payload)
    return media_type, _decode_base64(unquote_to_bytes(payload) if "%" in payload else payload)


def _decode_base64(text: str | bytes) -> bytes:
    """With or without padding, in the standard alphabet or that of URLs, with line breaks or without."""
    try:
        digits = text.encode("ascii") if isinstance(text, str) else text
        digits = digits.translate(STANDARD, BLANKS).rstrip(b"=")
        return binascii.a2b_base64(digits + b"=" * (-len(digits) % 4), strict_mode=True)
    except ValueError:  # of the encoding too
        raise Unreadable(NOT_BASE64) from None
