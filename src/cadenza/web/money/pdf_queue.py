"""PDFs of documents are made one at a time, in a thread: one takes some ten milliseconds, the first takes longer."""

import asyncio

from cadenza.ledger.documents import Document


class PdfQueue:
    """Makes PDFs in a thread, one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def render(self, document: Document) -> bytes:
        async with self._turn:
            return await asyncio.to_thread(_render, document)


def _render(document: Document) -> bytes:
    from cadenza.control.money.document_pdf import render_pdf  # noqa: PLC0415 import time

    return render_pdf(document.read(), document.digest)
