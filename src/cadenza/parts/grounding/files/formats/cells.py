"""Number formats of spreadsheet cells: dates, times and percentages are numbers with a format."""

import re
from contextlib import suppress
from datetime import datetime, timedelta
from enum import Enum

import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.files.formats.package import Attributes, XmlReader, local
from cadenza.parts.grounding.files.formats.text import parse_count

FIRST_DAY_1900 = datetime(1899, 12, 30)  # noqa: DTZ001 a spreadsheet knows no time zones
FIRST_DAY_1904 = datetime(1904, 1, 1)  # noqa: DTZ001
DAYS_MAX = 2_958_466  # the end of the year 9999
FORMAT_CHARS_MAX = 1_000
NOT_A_DATE = re.compile(
    r'"[^"]*"|\\.|_.|\*.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE
)  # literal text, colours, currencies
DIGITS = re.compile(r"[0#?][0#?,. ]*")
LITERAL = re.compile(r'"([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]|([$€£¥+()%/ -])|_.|\*.|\[[^\]]*\]')
AFFIX_CHARS_MAX = 20
WHOLE_MAX = 1e21  # a whole number below it is shown with all its digits
DURATION = re.compile(r"\[(?:h+|m+|s+)\]", re.IGNORECASE)
ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
COLUMN = re.compile(r"[A-Za-z]{1,3}")


class NumberKind(Enum):
    """What a number is shown as."""

    NUMBER = "number"
    PERCENT = "percent"
    DATE = "date"
    DURATION = "duration"


class CellFormat(Content, msgspec.Struct, frozen=True):
    """The affixes of a number, such as `$` and ` kg`, and to how many digits it is padded with zeros."""

    kind: NumberKind = NumberKind.NUMBER
    before: str = ""
    after: str = ""
    digits: int = 0


PLAIN = CellFormat()
PERCENT, DATE = CellFormat(NumberKind.PERCENT), CellFormat(NumberKind.DATE)
BUILT_IN = {
    **dict.fromkeys((9, 10), PERCENT),
    46: CellFormat(NumberKind.DURATION),
    **dict.fromkeys((*range(14, 23), *range(27, 37), 45, 47, *range(50, 59)), DATE),
}


class CellFormats(XmlReader):
    """The formats of a workbook. It takes the events of its styles."""

    def __init__(self, *, counts_from_1904: bool) -> None:
        self.first_day = FIRST_DAY_1904 if counts_from_1904 else FIRST_DAY_1900
        self._own: dict[str, CellFormat] = {}
        self._formats: list[CellFormat] = []
        self._is_in_cells = False

    def find(self, style: str) -> CellFormat:
        index = parse_count(style, -1)
        return self._formats[index] if 0 <= index < len(self._formats) else PLAIN

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "numFmt":
            self._own[local(attributes, "numFmtId")] = parse_format(local(attributes, "formatCode"))
        elif tag == "cellXfs":
            self._is_in_cells = True
        elif tag == "xf" and self._is_in_cells:
            id_ = local(attributes, "numFmtId")
            self._formats.append(self._own.get(id_) or BUILT_IN.get(parse_count(id_, -1), PLAIN))

    def end(self, tag: str) -> None:
        if tag == "cellXfs":
            self._is_in_cells = False


def parse_format(code: str) -> CellFormat:
    """Parse a format such as `0.0%` or `[$€-407] #,##0.00`. If it has several cases, the first counts."""
    code = code[:FORMAT_CHARS_MAX]
    kind = kind_of_format(code)
    if kind is not NumberKind.NUMBER or code.startswith(("[<", "[>")):
        return CellFormat(kind)
    bare = LITERAL.sub(lambda found: "\0" * len(found[0]), code)  # as long as the code
    end = bare.find(";") if ";" in bare else len(bare)
    numbers = DIGITS.search(bare, 0, end)
    if numbers is None or bare[:end].replace(numbers[0], "", 1).strip("\0"):
        return CellFormat(kind)  # a mask, such as for telephone numbers, or a fraction
    before, after = _literal(code[: numbers.start()]), _literal(code[numbers.end() : end])
    digits = numbers.end() - numbers.start() if set(numbers[0]) == {"0"} else 0
    return CellFormat(kind, before.lstrip(), after.rstrip(), digits)


def _literal(code: str) -> str:
    text = "".join("".join(filter(None, found.groups())) for found in LITERAL.finditer(code))
    return text if len(text) <= AFFIX_CHARS_MAX else ""


def kind_of_format(code: str) -> NumberKind:
    code = NOT_A_DATE.sub("", code).split(";")[0].lower()
    if DURATION.search(code):
        return NumberKind.DURATION
    if "general" in code or "0" in code or "#" in code or "?" in code:
        is_time = "ss.0" in code or "s.0" in code
        return NumberKind.DATE if is_time else NumberKind.PERCENT if "%" in code else NumberKind.NUMBER
    return NumberKind.DATE if re.search(r"[ymdhsb]", code) else NumberKind.NUMBER


def unescaped(text: str) -> str:
    """Decode the characters that XML cannot contain, which are written as `_x000D_`."""
    return ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def column_of(reference: str) -> int:
    """'C7' is column 3; 0 if there is no reference."""
    letters, number = COLUMN.match(reference), 0
    for letter in letters[0].upper() if letters else "":
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def column_letters(number: int) -> str:
    letters = ""
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


def show_number(value: str, shown_as: CellFormat, first_day: datetime) -> str:
    """A whole number with all its digits, others with about ten; a date in ISO 8601."""
    if shown_as is PLAIN and len(value) < 12 and "E" not in value and "e" not in value:
        return value
    kind = shown_as.kind
    if kind is NumberKind.NUMBER:
        return _with_format(_show_plain(value), shown_as)
    try:
        number = float(value)
    except ValueError:
        return value
    if kind is NumberKind.DURATION and 0 <= number < DAYS_MAX:
        minutes, seconds = divmod(round(number * 86_400), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    if kind is NumberKind.DATE and 0 <= number < DAYS_MAX:
        with suppress(OverflowError):  # beyond the year 9999, if days are counted from 1904
            return _show_date(number, first_day)
    return f"{_show_float(number * 100)}%" if kind is NumberKind.PERCENT else _show_float(number)


def _with_format(number: str, shown_as: CellFormat) -> str:
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    if digits.isdigit():
        digits = digits.rjust(shown_as.digits, "0")
    return f"{sign}{shown_as.before}{digits}{shown_as.after}"


def _show_plain(value: str) -> str:
    """A whole number stays as it is: a float could lose digits, and it may be an account number."""
    if value.removeprefix("-").isdigit():
        return value
    try:
        return _show_float(float(value))
    except ValueError:
        return value


def _show_float(number: float) -> str:
    """With ten digits (the 0 of 0.5 is one) and at least two decimals: further ones are mostly rounding errors."""
    if number.is_integer() and abs(number) < WHOLE_MAX:
        return f"{number:.0f}"
    if 1e8 <= abs(number) < WHOLE_MAX:
        return f"{number:.2f}".rstrip("0").rstrip(".")
    return f"{number:.10g}" if abs(number) >= 1 else f"{number:.9g}"


def _show_date(days: float, first_day: datetime) -> str:
    """The calendar from 1900 has a 29 February 1900, which did not exist: the days before it are off by one."""
    if first_day == FIRST_DAY_1900 and 1 <= days < 60:
        days += 1
    moment = first_day + timedelta(milliseconds=round(days * 86_400_000))
    if moment.microsecond >= 999_000:
        moment = (moment + timedelta(seconds=1)).replace(microsecond=0)
    if days < 1:
        return moment.strftime("%H:%M:%S")
    is_midnight = (moment.hour, moment.minute, moment.second) == (0, 0, 0)
    return moment.strftime("%Y-%m-%d" if is_midnight else "%Y-%m-%d %H:%M:%S")
