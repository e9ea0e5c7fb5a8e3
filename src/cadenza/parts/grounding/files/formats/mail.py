"""EML to text: the main headers, the body, the names and sizes of the attachments, and their text.

An attachment that cannot be read is named with the reason.
"""

import email.errors
import email.generator  # Message.as_bytes imports it when it is needed, which is too late in the child
import email.header
import email.parser
import email.policy
import re
from collections import Counter
from collections.abc import Callable, Iterator
from email.message import Message

from cadenza.parts.grounding.files.formats.source import ReadBudget, SourceFile
from cadenza.parts.grounding.files.formats.text import OFTEN_WRONG, clean, decode, known_charset
from cadenza.parts.grounding.files.formats.web_page import decode_html, html_text
from cadenza.parts.grounding.files.records import Section, Unreadable

HEADERS = ("From", "To", "Cc", "Date", "Subject")
TYPE_NAMES = {  # of attachments without a name
    "message/rfc822": "e-mail",
    "message/delivery-status": "delivery status",
    "message/disposition-notification": "read receipt",
    "text/rfc822-headers": "headers of an e-mail",
    "text/calendar": "invitation",
}
ENCODED = r"=\?[^?\s]{1,60}\?[bqBQ]\?[^?]*+\?="
ENCODED_WORDS = re.compile(rf"{ENCODED}(?:\s+{ENCODED})*")
HEADER_CHARS_MAX = 2_000
NAME_CHARS_MAX = 120
PARTS_MAX = 1_000
MAIL_HEADER = re.compile(
    rb"(?:from|to|cc|date|subject|sender|reply-to|received|return-path|delivered-to|message-id|mime-version|content-type|"
    rb"dkim-signature|arc-[\w-]+|x-[\w-]+):[ \t]",
    re.IGNORECASE,
)
HEAD_END = re.compile(rb"\r?\n\r?\n")
HEAD_BYTES_MAX = 128 * 1024  # the time to parse headers grows faster than their size
FAULTS = (RecursionError, ValueError, LookupError, TypeError, AttributeError, email.errors.MessageError)
ReadFile = Callable[[SourceFile], list[Section]]


def is_mail(file: SourceFile) -> bool:
    is_said = file.name.endswith(".eml") or file.media_type == "message/rfc822"
    return is_said and MAIL_HEADER.search(file.start) is not None


def read_mail(file: SourceFile, read_file: ReadFile) -> list[Section]:
    """`read_file` reads the attachments."""
    head_end = HEAD_END.search(file.data)
    if (head_end.start() if head_end else len(file.data)) > HEAD_BYTES_MAX:
        raise Unreadable("it is an e-mail with too many headers")
    try:
        message = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(file.data)
        return _read_message(message, file.budget, read_file)
    except FAULTS:
        raise Unreadable("it is a damaged e-mail") from None


def _read_message(message: Message, budget: ReadBudget, read_file: ReadFile) -> list[Section]:
    parts = list(_parts(message))
    if len(parts) > PARTS_MAX:
        raise Unreadable(f"it is an e-mail with more than {PARTS_MAX:,} parts")
    body = _body(message, budget)
    listed, sections, names = list[str](), list[Section](), Counter[str]()
    for part in filter(_is_attachment, parts):
        name = _name(part)
        names[name] += 1
        unique = name if names[name] == 1 else f"{name} ({names[name]})"
        entry, found = _attachment(unique, part, budget, read_file)
        listed.append(entry)
        sections += found
    head = [f"{name}: {text}" for name in HEADERS if (text := _header(message, name))]
    head += [f"Attachments: {', '.join(listed)}"] if listed else []
    return [Section("", "\n".join(head) + f"\n\n{body}"), *sections]


def _parts(message: Message) -> Iterator[Message]:
    """The parts with content. An attached e-mail is one part."""
    if message.get_content_maintype() == "multipart" and message.is_multipart():
        for part in message.get_payload():
            if isinstance(part, Message):
                yield from _parts(part)
    else:
        yield message


def _is_attachment(part: Message) -> bool:
    if part.get_content_maintype() == "message" and part.is_multipart():
        return True
    is_body = part.get_content_type() in {"text/plain", "text/html"} and not part.get_filename()
    return part.get_content_disposition() == "attachment" or not is_body


def _body(part: Message, budget: ReadBudget) -> str:
    """The text of an e-mail. Of alternatives, the plain one is taken, else the last, which is the richest."""
    if part.get_content_maintype() == "multipart" and part.is_multipart():
        inner = [one for one in part.get_payload() if isinstance(one, Message)]
        if part.get_content_type() != "multipart/alternative":
            return "\n\n".join(filter(None, (_body(one, budget) for one in inner)))
        inner.sort(key=lambda one: one.get_content_type() == "text/plain")
        return next(filter(None, (_body(one, budget) for one in reversed(inner))), "")
    if _is_attachment(part):
        return ""
    if part.get_content_type() == "text/html":
        return html_text(decode_html(_bytes(part), _charset(part)), budget)
    text = clean(decode(_bytes(part), known_charset(_charset(part)))).strip()
    budget.take_chars(len(text))
    return text


def _attachment(name: str, part: Message, budget: ReadBudget, read_file: ReadFile) -> tuple[str, list[Section]]:
    """The entry of an attachment in the list, and its text; or in the entry the reason why it was not read."""
    data = _bytes(part)
    size = _size(len(data))
    try:
        with budget.attachment():
            found = read_file(SourceFile(name, part.get_content_type(), data, budget))
    except Unreadable as error:
        return f"{name} ({size}, not read: {error.reason.partition(';')[0]})", []
    label = f"attachment {name}"
    sections = [Section(f"{label}, {one.label}" if one.label else label, one.text) for one in found]
    return f"{name} ({size})", sections


def _size(count: int) -> str:
    if count < 1_000:
        return f"{count} bytes"
    return f"{count / 1_000:.0f} KB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


def _bytes(part: Message) -> bytes:
    """The decoded content of a part; of an attached e-mail or delivery status, its source."""
    if part.is_multipart():
        return b"\n".join(one.as_bytes() for one in part.get_payload() if isinstance(one, Message))
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _charset(part: Message) -> str:
    return str(part.get_param("charset") or "")


def _name(part: Message) -> str:
    try:
        name = _decoded(part.get_filename() or "")
    except FAULTS:
        name = ""
    name = " ".join(clean(name.replace("\\", "/").rpartition("/")[2]).split())[:NAME_CHARS_MAX]
    return name or TYPE_NAMES.get(part.get_content_type(), "without a name")


def _header(message: Message, name: str) -> str:
    """A header. Some programs write it in plain UTF-8, whose bytes the parser keeps as surrogates."""
    raw = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
    text = str(raw)[:HEADER_CHARS_MAX]
    if not text.isascii():
        text = decode(text.encode("ascii", "surrogateescape"), OFTEN_WRONG)
    return " ".join(clean(_decoded(text)).split())


def _decoded(text: str) -> str:
    """A header with its encoded words decoded; those that are damaged stay as they are."""
    return ENCODED_WORDS.sub(_decoded_words, text) if "=?" in text else text


def _decoded_words(found: re.Match[str]) -> str:
    try:
        return str(email.header.make_header(email.header.decode_header(found[0])))
    except (LookupError, ValueError, email.errors.MessageError):
        return found[0]
