"""Spreadsheets: numbers as people see them, and rows and columns that can be cited."""

from datetime import date, datetime, time, timedelta

import openpyxl
import pytest

from cadenza.parts.grounding.files.formats.cells import FIRST_DAY_1900, PLAIN, parse_format, show_number
from cadenza.parts.grounding.files.formats.read import read_document
from tests import made_files as made


def read(data: bytes) -> dict[str, str]:
    return {section.label: section.text for section in read_document("a.xlsx", "", data)}


def test_computed_values() -> None:
    """A formula that was computed shows its value, as text, number, error or truth; an empty text is an empty cell."""
    cells = (
        "<c r='A1'><f>1+1</f><v>2</v></c><c r='B1' t='str'><f>X</f><v>two</v></c><c r='D1' t='e'><v>#N/A</v></c>"
        "<c r='C1' t='str'><f>Y</f><v></v></c><c r='E1' t='b'><v>1</v></c><c r='F1'><v>0.30000000000000004</v></c>"
        "<c r='G1' t='inlineStr'><is><t>in</t></is></c>"
    )
    assert read(made.make_sheet(f"<row>{cells}</row>"))["sheet One"].endswith(
        "| 1 | 2 | two | #N/A | TRUE | 0.3 | in |"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("4111111111111111", "4111111111111111"),
        ("12345678901234567890", "12345678901234567890"),
        ("-1234567890123456", "-1234567890123456"),
        ("4.111111111111111E+15", "4111111111111111"),
        ("1e+20", "100000000000000000000"),
        ("1e+21", "1e+21"),
        ("0.30000000000000004", "0.3"),
        ("0.1000000001", "0.1"),
        ("123456.78901234567", "123456.789"),
        ("12345678901.55", "12345678901.55"),
        ("1.5E-7", "1.5e-07"),
        ("3.2", "3.2"),
        ("nonsense", "nonsense"),
    ],
)
def test_numbers(value: str, shown: str) -> None:
    """A whole number has all its digits, as that of an account; others have no errors of rounding."""
    assert show_number(value, PLAIN, FIRST_DAY_1900) == shown


@pytest.mark.parametrize(
    ("code", "value", "shown"),
    [
        ("0%", "0.07", "7%"),
        ("0.0%", "0.256", "25.6%"),
        ("00000", "2134", "02134"),
        ("0", "4111111111111111", "4111111111111111"),
        ('#,##0.00 "EUR"', "1234.5", "1234.5 EUR"),
        ("[$€-407]#,##0.00", "-3.2", "-€3.2"),
        ("$#,##0.00_);[Red]($#,##0.00)", "5", "$5"),
        ('_-* #,##0.00\\ "€"_-;-* #,##0.00\\ "€"_-', "12", "12 €"),
        ('0.0 "kg"', "7.5", "7.5 kg"),
        ("000-00-0000", "123456789", "123456789"),
        ("# ?/?", "0.5", "0.5"),
        ("General", "0.5", "0.5"),
        ("dd.mm.yyyy", "46082", "2026-03-01"),
        ("dd.mm.yyyy", "59", "1900-02-28"),
        ("dd.mm.yyyy", "60", "1900-02-28"),
        ("h:mm AM/PM", "0.75", "18:00:00"),
        ("[h]:mm:ss", "1.5", "36:00:00"),
        ("[$-409]mmmm\\ d\\,\\ yyyy;@", "46082", "2026-03-01"),
    ],
)
def test_formats(code: str, value: str, shown: str) -> None:
    """Percentages, dates, times, units and leading zeros are shown as the format of the cell has them."""
    assert show_number(value, parse_format(code), FIRST_DAY_1900) == shown


def test_rows_and_columns_keep_their_numbers() -> None:
    """Empty rows and columns are left out, the others keep their numbers and letters."""
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet["B2"], sheet["D2"] = "When", "What"
    sheet["B7"], sheet["D7"] = datetime(2026, 3, 1, 14, 30), time(9, 15)  # noqa: DTZ001 a sheet knows no time zones
    sheet["B9"], sheet["D9"] = timedelta(hours=30), date(2026, 3, 2)
    assert read(made.saved(workbook))["sheet Sheet"].split("\n") == [
        "|  | B | D |",
        "| --- | --- | --- |",
        "| 2 | When | What |",
        "| 7 | 2026-03-01 14:30:00 | 09:15:00 |",
        "| 9 | 30:00:00 | 2026-03-02 |",
    ]


def test_merged_cells() -> None:
    """A value in merged cells is shown in each row of them, so that a row makes sense alone."""
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    for row in (("Region", "Town", ""), ("North", "Kiel", 1), (None, "Bremen", 2), ("South", "Ulm", 3)):
        sheet.append(row)
    sheet.merge_cells("A2:A3")
    sheet.merge_cells("B1:C1")
    assert read(made.saved(workbook))["sheet Sheet"].split("\n")[2:] == [
        "| 1 | Region | Town |",
        "| 2 | North | Kiel | 1 |",
        "| 3 | North | Bremen | 2 |",
        "| 4 | South | Ulm | 3 |",
    ]


@pytest.mark.parametrize("state", ["hidden", "veryHidden"])
def test_hidden_sheets(state: str) -> None:
    """A hidden sheet is read, and its label says that it is hidden."""
    workbook = openpyxl.Workbook()
    workbook.active["A1"] = "seen"
    hidden = workbook.create_sheet("Rates")
    hidden["A1"], hidden.sheet_state = "unseen", state
    assert list(read(made.saved(workbook))) == ["sheet Sheet", "sheet Rates (hidden)"]
