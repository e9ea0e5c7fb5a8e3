"""Names of files, as they are shown to the client and to the model."""

import pytest

from cadenza.core.files import NAME_CHARS_MAX, clean_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a.pdf", "a.pdf"),
        ("/etc/../home/a.pdf", "a.pdf"),
        ("C:\\Users\\me\\a b.docx", "a b.docx"),
        ("..\\..\\", "file"),
        ("", "file"),
        ("\n\r\t", "file"),
        ("a\nb\x00c\x1b[31m.pdf", "abc[31m.pdf"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),  # it would be shown backwards
        ("Übersicht 漢字.xlsx", "Übersicht 漢字.xlsx"),
    ],
)
def test_a_name_is_its_last_part_without_control_characters(name: str, shown: str) -> None:
    """Paths of either kind are left out, and so is what cannot be printed."""
    assert clean_name(name) == shown


def test_a_long_name_keeps_its_suffix() -> None:
    """It is cut to the bound; what follows the last dot is kept if it is short."""
    assert clean_name("a" * 500 + ".pdf") == "a" * (NAME_CHARS_MAX - 4) + ".pdf"
    assert clean_name("." + "b" * 500) == ("." + "b" * 500)[:NAME_CHARS_MAX]
    assert clean_name("a" * 500) == "a" * NAME_CHARS_MAX
