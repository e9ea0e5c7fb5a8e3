"""EML to text: the headers that matter, the body, the names of the attachments, and the text of those."""

import email.errors
import email.generator  # Message.as_bytes imports it when it is needed, which is too late in the child
import email.header
import email.parser
import email.policy
import re
from collections.abc import Callable, Iterator
from email.message import Message

from cadenza.documents.formats.limits import Allowance
from cadenza.documents.formats.text import clean, decode, known_charset
from cadenza.documents.formats.web_page import decode_html, html_text
from cadenza.documents.records import Section, Unreadable

HEADERS = ("From", "To", "Cc", "Date", "Subject")
HEADER_CHARS_MAX = 2_000
NAME_CHARS_MAX = 120
PARTS_MAX = 1_000
HEAD_END = re.compile(rb"\r?\n\r?\n")
HEAD_BYTES_MAX = 128 * 1024  # parsing takes time that grows faster than the headers
FAULTS = (RecursionError, ValueError, LookupError, TypeError, AttributeError, email.errors.MessageError)
ReadFile = Callable[[str, str, bytes, Allowance], list[Section]]


def read_mail(data: bytes, allowance: Allowance, read_file: ReadFile) -> list[Section]:
    head_end = HEAD_END.search(data)
    if (head_end.start() if head_end else len(data)) > HEAD_BYTES_MAX:
        raise Unreadable("it is an e-mail with too many headers")
    try:
        return _read_message(
            email.parser.BytesParser(policy=email.policy.compat32).parsebytes(data), allowance, read_file
        )
    except FAULTS:
        raise Unreadable("it is a damaged e-mail") from None


def _read_message(message: Message, allowance: Allowance, read_file: ReadFile) -> list[Section]:
    parts = list(_parts(message))
    if len(parts) > PARTS_MAX:
        raise Unreadable(f"it is an e-mail with more than {PARTS_MAX:,} parts")
    attached = [part for part in parts if _is_attachment(part)]
    body = _body([part for part in parts if not _is_attachment(part)], allowance)
    head = [f"{name}: {text}" for name in HEADERS if (text := _header(message, name))]
    head += [f"Attachments: {', '.join(map(_name, attached))}"] if attached else []
    sections = [Section("", "\n".join(head) + f"\n\n{body}")]
    for part in attached:
        sections += _attachment(part, allowance, read_file)
    return sections


def _parts(message: Message) -> Iterator[Message]:
    """The parts with content, without those of an e-mail inside it, which is a part itself."""
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


def _body(parts: list[Message], allowance: Allowance) -> str:
    """The plain text, else the HTML; they are two forms of one text."""
    plain = [part for part in parts if part.get_content_type() == "text/plain"]
    texts = [_plain(part) for part in plain]
    if any(text.strip() for text in texts):
        allowance.take_chars(sum(map(len, texts)))
        return "\n\n".join(texts)
    pages = (decode_html(_bytes(part), _charset(part)) for part in parts if part.get_content_type() == "text/html")
    return "\n\n".join(html_text(page, allowance) for page in pages)


def _plain(part: Message) -> str:
    return clean(decode(_bytes(part), known_charset(_charset(part)))).strip()


def _attachment(part: Message, allowance: Allowance, read_file: ReadFile) -> list[Section]:
    """What can be read of an attachment. It is left out if it cannot be read, or beyond the number of attachments."""
    if not allowance.take_attachment():
        return []
    allowance.enter()
    try:
        found = read_file(_name(part), part.get_content_type(), _bytes(part), allowance)
    except Unreadable:
        return []
    finally:
        allowance.leave()
    name = _name(part)
    return [Section(f"attachment {name}{f', {one.label}' if one.label else ''}", one.text) for one in found]


def _bytes(part: Message) -> bytes:
    if part.is_multipart():
        inner = part.get_payload(0)
        return inner.as_bytes() if isinstance(inner, Message) else b""
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
    return name or ("e-mail" if part.get_content_maintype() == "message" else "without a name")


def _header(message: Message, name: str) -> str:
    return " ".join(clean(_decoded(str(message.get(name, ""))[:HEADER_CHARS_MAX])).split())


def _decoded(text: str) -> str:
    """A header with its encoded words decoded; those that are damaged stay as they are."""
    try:
        return str(email.header.make_header(email.header.decode_header(text)))
    except (LookupError, ValueError, email.errors.MessageError):
        return text
