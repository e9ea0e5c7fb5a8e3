"""The archive of an account as a download: one at a time for each account."""

from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from cadenza.control.account.export import archive_name, begin_export, write_archive
from cadenza.core.rates import Rate
from cadenza.parts.site.account.archive_turns import ArchiveTurns
from cadenza.parts.site.account.sessions import SECURITY_PAGE
from cadenza.parts.site.routes import Routes, form
from cadenza.parts.site.visit import Visit

ARCHIVES = Rate(1 / 600, 3)  # for each account


class ArchiveResponse(StreamingResponse):
    """Ends the turn of its account, however the download ends."""

    def __init__(self, parts: AsyncIterator[bytes], name: str, turns: ArchiveTurns, account_id: str) -> None:
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        super().__init__(parts, headers=headers, media_type="application/zip")
        self._turns = turns
        self._account_id = account_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._turns.end(self._account_id)


async def download(visit: Visit) -> Response:
    turns, account = visit.context.archive_turns, visit.account
    await visit.limit("archive", ARCHIVES, "You have downloaded several archives. Try again in ten minutes.")
    turns.begin(account.id)
    try:
        await begin_export(visit.store, account.email, visit.owner, visit.now_ms)
    except BaseException:
        turns.end(account.id)
        raise
    parts = write_archive(visit.store, account, visit.now_ms, visit.context.export_pace)
    return ArchiveResponse(parts, archive_name(account, visit.now_ms), turns, account.id)


ROUTES: Routes = (form(f"{SECURITY_PAGE}/export", download, SECURITY_PAGE, needs_proof=True),)
