"""Numbers of spreadsheet cells as people see them: dates, times and percentages are numbers with a format."""

import re
from contextlib import suppress
from datetime import datetime, timedelta
from enum import Enum

from cadenza.documents.formats.xml_events import Attributes, local

FIRST_DAY_1900 = datetime(1899, 12, 30)  # noqa: DTZ001 a spreadsheet knows no time zones
FIRST_DAY_1904 = datetime(1904, 1, 1)  # noqa: DTZ001
DAYS_MAX = 2_958_466  # the end of the year 9999
NOT_A_DATE = re.compile(
    r'"[^"]*"|\\.|_.|\*.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE
)  # literal text, colours, currencies
DURATION = re.compile(r"\[(?:h+|m+|s+)\]", re.IGNORECASE)
ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
COLUMN = re.compile(r"[A-Za-z]{1,3}")


class NumberKind(Enum):
    """What a number is shown as."""

    NUMBER = "number"
    PERCENT = "percent"
    DATE = "date"
    DURATION = "duration"


BUILT_IN = {
    **dict.fromkeys((9, 10), NumberKind.PERCENT),
    46: NumberKind.DURATION,
    **dict.fromkeys((*range(14, 23), *range(27, 37), 45, 47, *range(50, 59)), NumberKind.DATE),
}


class CellFormats:
    """The formats of a workbook. It takes the events of its styles."""

    def __init__(self, *, counts_from_1904: bool) -> None:
        self.first_day = FIRST_DAY_1904 if counts_from_1904 else FIRST_DAY_1900
        self._own: dict[str, NumberKind] = {}
        self._kinds: list[NumberKind] = []
        self._is_in_cells = False

    def kind(self, style: str) -> NumberKind:
        index = int(style) if style.isascii() and style.isdigit() and len(style) < 10 else -1
        return self._kinds[index] if 0 <= index < len(self._kinds) else NumberKind.NUMBER

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "numFmt":
            self._own[local(attributes, "numFmtId")] = kind_of_format(local(attributes, "formatCode"))
        elif tag == "cellXfs":
            self._is_in_cells = True
        elif tag == "xf" and self._is_in_cells:
            self._kinds.append(self._find(local(attributes, "numFmtId")))

    def end(self, tag: str) -> None:
        if tag == "cellXfs":
            self._is_in_cells = False

    def text(self, data: str) -> None:
        pass

    def _find(self, id_: str) -> NumberKind:
        if id_ in self._own:
            return self._own[id_]
        return (
            BUILT_IN.get(int(id_), NumberKind.NUMBER)
            if id_.isascii() and id_.isdigit() and len(id_) < 10
            else NumberKind.NUMBER
        )


def kind_of_format(code: str) -> NumberKind:
    code = NOT_A_DATE.sub("", code[:1000]).split(";")[0].lower()
    if DURATION.search(code):
        return NumberKind.DURATION
    if "general" in code or "0" in code or "#" in code or "?" in code:
        is_time = "ss.0" in code or "s.0" in code
        return NumberKind.DATE if is_time else NumberKind.PERCENT if "%" in code else NumberKind.NUMBER
    return NumberKind.DATE if re.search(r"[ymdhsb]", code) else NumberKind.NUMBER


def unescaped(text: str) -> str:
    """A text in which characters that XML cannot have are written as _x000D_."""
    return ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def column_of(reference: str) -> int:
    """'C7' is column 3; 0 if there is no reference."""
    letters, number = COLUMN.match(reference), 0
    for letter in letters[0].upper() if letters else "":
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def show_number(value: str, kind: NumberKind, first_day: datetime) -> str:
    """A number with at most 15 digits, as spreadsheets have it; a date in ISO 8601."""
    if len(value) < 16 and kind is NumberKind.NUMBER:
        return value
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
    return f"{number * 100:.10g}%" if kind is NumberKind.PERCENT else f"{number:.15g}"


def _show_date(days: float, first_day: datetime) -> str:
    """The 29 February 1900 of the calendar that counts from 1900 does not exist, so days before it are one later."""
    if first_day == FIRST_DAY_1900 and 1 <= days < 60:
        days += 1
    moment = first_day + timedelta(milliseconds=round(days * 86_400_000))
    if moment.microsecond >= 999_000:
        moment = (moment + timedelta(seconds=1)).replace(microsecond=0)
    if days < 1:
        return moment.strftime("%H:%M:%S")
    return moment.strftime(
        "%Y-%m-%d" if (moment.hour, moment.minute, moment.second) == (0, 0, 0) else "%Y-%m-%d %H:%M:%S"
    )
