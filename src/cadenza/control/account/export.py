"""The archive of an account: a zip file with everything that the store has of it, for its owner.

It is written as it is sent, a page of rows at a time, so an account with a million requests takes no more memory than
one with ten. The rows are read without a transaction: what changes meanwhile may be in one file and not in another.
"""

import json
import zipfile
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import IO, Any

import msgspec

from cadenza.control.account.accounts import check_owner, get_account
from cadenza.core.csv_text import csv_text
from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.records import Actor
from cadenza.pace import Pace
from cadenza.store.store import Row, Store, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import AuditEvent
from cadenza.store.tables.personal_data import EXPORTED, LEFT_OUT, ExportedTable, read_pages

FORMAT = 1
README = "README.txt"
MANIFEST = "manifest.json"
STATEMENT, BALANCE = "statement.csv", "balance"
ABOUT = """\
Everything that this service stores about the account {email}
as of {made_at}. Prompts and replies are not here: they are never stored.

Times are RFC 3339 in UTC. Amounts are dollars, with all their digits. A field without a
value is null, or empty in a CSV file. Text in a CSV file that a spreadsheet would run as
a formula has a single quote in front. Rows are in the order of their keys.

manifest.json lists the files with the number of their rows, and what is left out.
"""


class _Sink:
    """Takes what the zip file writes, until it is sent. It cannot seek, so sizes follow the data of each file."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes, /) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


async def begin_export(store: Store, email: str, by: Actor, now_ms: int) -> Account:
    """Note in the audit log that the data of an account is handed out, before it is."""
    account = await get_account(store, email)
    check_owner(by, account)

    def note(tx: Transaction) -> None:
        audit_events.add(tx, AuditEvent(now_ms, by, "account.export", account.id))

    await store.transact(note)
    return account


def archive_name(account: Account, now_ms: int) -> str:
    return f"cadenza-{account.id}-{rfc3339(now_ms)[:10]}.zip"


async def write_archive(store: Store, account: Account, now_ms: int, pace: Pace) -> AsyncIterator[bytes]:
    """The bytes of the archive, some at a time."""
    sink, counts = _Sink(), dict[str, int]()
    archive = zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED)
    archive.writestr(_info(README, now_ms), describe(account, now_ms))
    for exported in EXPORTED:
        with archive.open(_info(exported.file, now_ms), "w", force_zip64=True) as file:
            table = _TableFile(file, exported)
            async for rows in read_pages(store, exported, account.id):
                async with pace:
                    table.add(rows)
                yield sink.take()
            table.end()
        counts[exported.file] = table.count
    archive.writestr(_info(MANIFEST, now_ms), _manifest(account, now_ms, counts))
    archive.close()
    yield sink.take()


async def write_to(file: IO[bytes], store: Store, email: str, by: Actor, now_ms: int) -> None:
    account = await begin_export(store, email, by, now_ms)
    async for part in write_archive(store, account, now_ms, Pace()):
        file.write(part)


class _TableFile:
    """The file of one table: a JSON array with a row in each line, or a CSV file with a header."""

    def __init__(self, file: IO[bytes], exported: ExportedTable) -> None:
        self.count = 0
        self._file = file
        self._is_csv = exported.file.endswith(".csv")
        self._fields = [*shown_fields(exported)]
        self._show = [_converter(name, exported) for name in exported.fields]
        self._amount = self._fields.index("amount") if exported.file == STATEMENT else None
        self._balance_nano = 0
        if self._is_csv:
            self._file.write(csv_text([self._fields]).encode())

    def add(self, rows: Sequence[Row]) -> None:
        shown = [self._shown(row) for row in rows]
        if self._is_csv:
            self._file.write(csv_text(shown).encode())
        else:
            named = [dict(zip(self._fields, values, strict=True)) for values in shown]
            lines = ",\n".join([json.dumps(one, ensure_ascii=False) for one in named])
            self._file.write(((",\n" if self.count else "[\n") + lines).encode())
        self.count += len(rows)

    def end(self) -> None:
        if not self._is_csv:
            self._file.write(b"\n]\n" if self.count else b"[]\n")

    def _shown(self, row: Row) -> list[object]:
        values = [
            show(value) if show and value is not None else value for show, value in zip(self._show, row, strict=True)
        ]
        if self._amount is not None:
            self._balance_nano += row[self._amount]
            values.append(format_dollars(self._balance_nano))
        return values


def _converter(column: str, exported: ExportedTable) -> Callable[[Any], object] | None:
    """What makes a value readable for other programs; None: it is already."""
    if column.endswith("_nano"):
        return format_dollars
    if column == "at" or column.endswith("_at"):
        return rfc3339
    return bool if exported.is_flag(column) else None  # SQLite has numbers


def shown_fields(exported: ExportedTable) -> dict[str, str]:
    """The fields of the file, with what each means. The statement also has the balance after each entry."""
    fields = {name.removesuffix("_nano"): meaning for name, meaning in exported.fields.items()}
    return fields | ({BALANCE: "the balance after it"} if exported.file == STATEMENT else {})


def describe(account: Account, now_ms: int) -> str:
    """The text file of an archive: what each file and each field is."""
    parts = [ABOUT.format(email=account.email, made_at=rfc3339(now_ms))]
    for exported in EXPORTED:
        fields = shown_fields(exported)
        width = max(map(len, fields)) + 2
        lines = [f"    {name:<{width}}{meaning}" for name, meaning in fields.items()]
        parts.append("\n".join([exported.file, f"  {exported.about}", *lines, ""]))
    return "\n".join(parts)


def _manifest(account: Account, now_ms: int, counts: dict[str, int]) -> bytes:
    found = {
        "format": FORMAT,
        "account_id": account.id,
        "made_at": rfc3339(now_ms),
        "files": [{"name": name, "rows": count} for name, count in counts.items()],
        "left_out_tables": LEFT_OUT,
        "left_out_columns": {exported.file: exported.left_out for exported in EXPORTED if exported.left_out},
    }
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def _info(name: str, now_ms: int) -> zipfile.ZipInfo:
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    info = zipfile.ZipInfo(name, (at.year, at.month, at.day, at.hour, at.minute, at.second))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o600 << 16
    return info
