"""Tables are found in texts, and split into rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.parts.grounding.files.tables import TableText, find_tables

CSV = "name,note\n" + "".join(f'row {number},"a, ""b""\nc"\n' for number in range(30))
MARKDOWN = "| Item | Price |\n| --- | --- |\n" + "".join(f"| item {number} | {number} |\n" for number in range(30))
SHEET = "|  | A | B |\n| --- | --- | --- |\n" + "".join(f"| {row} | name {row} | {row} |\n" for row in range(1, 40))


def joined(text: str) -> str:
    parts = find_tables(text)
    return "".join(part.head + "".join(part.rows) if isinstance(part, TableText) else part for part in parts)


@pytest.mark.parametrize(
    ("text", "head", "rows"),
    [
        (CSV, "name,note\n", 30),
        (CSV.replace(",", ";"), "name;note\n", 30),
        (MARKDOWN, "| Item | Price |\n| --- | --- |\n", 30),
        (SHEET, "|  | A | B |\n| --- | --- | --- |\n| 1 | name 1 | 1 |\n", 38),
    ],
)
def test_a_table_has_a_head_and_rows(text: str, head: str, rows: int) -> None:
    """A cell in quotes may have separators and line breaks; the first row of a sheet names its columns."""
    [table] = find_tables(text)
    assert isinstance(table, TableText)
    assert (table.head, len(table.rows)) == (head, rows)


def test_a_table_stands_between_texts() -> None:
    """What is before and after it is text; a short table is text too."""
    short = "| a |\n| --- |\n| b |\n"
    before, table, after = find_tables(f"One.\n\n{MARKDOWN}\nTwo.\n{short}")
    assert (before, after) == ("One.\n\n", f"\nTwo.\n{short}")
    assert isinstance(table, TableText)


@pytest.mark.parametrize(
    "text",
    [
        "It was late, and it rained.\n" * 5 + "Then it stopped.\n" * 40,
        '{\n "a": 1,\n "b": 2\n}\n' * 40,
        "import a, b\n\n\ndef c(d, e):\n    return d\n" * 20,
    ],
)
def test_other_text_is_no_table(text: str) -> None:
    """Prose, JSON and code."""
    assert list(find_tables(text)) == [text]


@given(st.text(st.sampled_from('a,;|"\n -'), max_size=300))
def test_no_character_is_lost(text: str) -> None:
    """Joined, the pieces are the text."""
    table = f"a,b\n{'c,d' * 3}\n" * 25
    assert joined(text) == text
    assert joined(table + text) == table + text
