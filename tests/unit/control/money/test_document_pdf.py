"""A document as PDF: what it says, in all scripts, and the same bytes each time."""

import pypdfium2

from cadenza.control.money.document_pdf import render_pdf
from cadenza.core.documents import ClassCharges, DocumentFacts, DocumentLine, Party

NAME = "Zażółć Україна 北京喆 カデンツァ 주식회사"
FACTS = DocumentFacts(
    kind="statement",
    number="EX-S-000007",
    account_id="acct_a",
    issued_at=1_800_000_000_000,
    seller=Party("Example Ltd", "1 Main Street\nDublin", "IE123"),
    buyer=Party(NAME, "x" * 200),
    month="2026-12",
    opening_nano=10**9,
    lines=tuple(DocumentLine(f"Line {number}", 10**9) for number in range(60)),
    total_nano=61 * 10**9,
    charges=(ClassCharges("search", 3, 0, 0, 0, 123), ClassCharges("forte", 1234, 5678, 9, 10, 10**9)),
)


def test_a_document_is_whole() -> None:
    """Every character has a glyph, a long table has several pages, and a second PDF has the same bytes."""
    content = render_pdf(FACTS, bytes(32))
    assert render_pdf(FACTS, bytes(32)) == content
    with pypdfium2.PdfDocument(content) as pages:
        texts = [page.get_textpage().get_text_range().replace("\r\n", "\n") for page in pages]
    text = "\n".join(texts)
    assert [one.count(bytes(32).hex()) for one in texts] == [1, 1, 1]
    wanted = ("Statement", "Dublin", "Tax id IE123", "Opening balance 1.00", "Line 59 1.00", "Closing balance 61.00")
    for words in (*wanted, "Web search 3 0 0 0 0.000000123", "forte 1,234 5,678 9 10 1.00", "2026-12, from midnight"):
        assert words in text, words
    assert NAME.replace(" ", "") in text.replace("\n", "").replace(" ", "")
