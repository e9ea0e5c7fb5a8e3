"""Bytes to text: encodings, unwanted characters, and the Markdown that all readers make. Text and JSON files."""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from cadenza.parts.grounding.files.formats.charsets import guess_charset
from cadenza.parts.grounding.files.formats.source import ReadBudget, SourceFile
from cadenza.parts.grounding.files.records import Section, Unreadable
from cadenza.parts.grounding.word_set import word_set

BOMS = (  # UTF-32 first: its mark begins like that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
CHARSETS = word_set("""
    big5 big5hkscs cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 cp866 cp874 cp932 cp949 cp950 euc_jp
    euc_kr gb18030 gb2312 gbk iso2022_jp iso8859-10 iso8859-13 iso8859-14 iso8859-15 iso8859-16 iso8859-2 iso8859-3
    iso8859-4 iso8859-5 iso8859-6 iso8859-7 iso8859-8 koi8-r koi8-u mac-roman shift_jis tis-620 utf-16 utf-16-be
    utf-16-le utf-8
    """)
WEB_NAMES = {"iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
LINE_END_CHARS = "\r\v\f\x85\u2028\u2029"
LINE_ENDS = re.compile(rf"\r\n?|[{LINE_END_CHARS}]")
UNWANTED = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufeff\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]")
BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
BINARY_SHARE_MAX = 0.001
GOOD_PER_BAD = 3  # in a text with few decoding errors: correct characters beyond ASCII for each error
OFTEN_WRONG = "cp1252"  # often declared for text that is UTF-8, so UTF-8 is tried first
JSON_NAMES = (".json", ".geojson", ".ipynb")
LONG_LINE_CHARS = 2_000


def clean(text: str) -> str:
    """The text with one kind of line end, and without control characters and the invisible tag characters."""
    if any(char in text for char in LINE_END_CHARS):
        text = LINE_ENDS.sub("\n", text)
    return UNWANTED.sub("", text) if UNWANTED.search(text) else text


def known_charset(name: str) -> str | None:
    """The codec for a charset as a header or a page names it; None if it is unknown or not for text."""
    try:
        codec = codecs.lookup(name.strip().strip("\"'").strip()[:40]).name
    except (LookupError, ValueError):
        return None
    codec = WEB_NAMES.get(codec, codec)
    return codec if codec in CHARSETS else None


def decode(data: bytes, charset: str | None = None) -> str:
    """`charset` is the codec that the sender named. Unreadable if the bytes are not text."""
    for mark, codec in BOMS:
        if data.startswith(mark):
            return data.decode(codec, "replace")
    for tried in ("utf-8", charset) if charset == OFTEN_WRONG else (charset, "utf-8"):
        try:
            if tried:
                return data.decode(tried)
        except UnicodeDecodeError:
            pass
    text = data.decode(charset or "utf-8", "replace")
    if _has_few_errors(text):
        return text
    guess = guess_charset(data)
    if guess:
        return data.decode(guess, "replace")
    if charset:
        return text
    raise Unreadable("its text is in an unknown encoding; save it as UTF-8")


def _is_binary(data: bytes) -> bool:
    if data.startswith(tuple(mark for mark, _ in BOMS)):
        return False
    return b"\0" in data[:4096] or len(BINARY.findall(data[:262144])) > BINARY_SHARE_MAX * min(len(data), 262144)


def _has_few_errors(text: str) -> bool:
    beyond_ascii = len(text) - len(text.encode("ascii", "ignore"))
    return beyond_ascii > (1 + GOOD_PER_BAD) * text.count("\ufffd")


def is_json(file: SourceFile) -> bool:
    return file.name.endswith(JSON_NAMES) or file.media_type == "application/json"


def read_text(file: SourceFile) -> list[Section]:
    codec = known_charset(file.charset)
    if not codec and _is_binary(file.data):
        raise Unreadable("it is not text, and not a file of a kind that can be read")
    text = decode(file.data, codec)
    file.budget.take_chars(len(text))
    return [Section("", text)]


def read_json(file: SourceFile) -> list[Section]:
    """JSON that is all on one line gets lines, so that it can be split into passages."""
    [section] = read_text(file)
    if len(section.text) > LONG_LINE_CHARS and "\n" not in section.text.strip():
        return [Section("", _indented(section.text, file.budget))]
    return [section]


def _indented(json_text: str, budget: ReadBudget) -> str:
    try:
        formatted = msgspec.json.format(json_text, indent=1)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return json_text
    budget.take_chars(max(0, len(formatted) - len(json_text)))
    return formatted


class ListItem(str):
    """A block that is an item of a list."""

    __slots__ = ()


def join_blocks(blocks: Iterable[str]) -> str:
    """Paragraphs, headings and tables, with an empty line between them; items of lists follow without one."""
    pieces, is_item = list[str](), False
    for block in blocks:
        was_item, is_item = is_item, isinstance(block, ListItem)
        pieces += ("\n" if was_item and is_item else "\n\n", block)
    return "".join(pieces[1:])


def table_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as a Markdown table whose first row is its head. Empty rows are left out."""
    width = max(map(len, rows), default=0)
    is_first = True
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|") for cell in row]
        if not any(cells):
            continue
        if is_first:
            cells += [""] * (width - len(cells))
        yield f"| {' | '.join(cells)} |"
        if is_first:
            yield f"|{' --- |' * width}"
            is_first = False


def parse_count(text: str, default: int = 0) -> int:
    """A number in an attribute; `default` if it is not a number, or has more than nine digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default
