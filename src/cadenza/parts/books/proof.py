"""Proves that the entries of a closed month are those that were closed: in the store, or in every column of a file.

A file is of `cadenza ledger export --month`. The hash of the month covers the columns of HASHED. The amount and the
time that people read follow from hashed ones. The other columns are compared with the store: they come from the account
and the metering row of a request. Those may have changed since the export, so what the store no longer knows is counted
as not proven.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cadenza.control.money.statement import CheckLedger, LedgerState
from cadenza.core.errors import ControlError
from cadenza.core.formats import escape_formula
from cadenza.core.spans import Span, month_span
from cadenza.ledger import check, months
from cadenza.ledger.export import EXPORT_FIELDS, REQUEST_FIELDS, export, readable
from cadenza.ledger.months import ClosedMonth
from cadenza.parts.books.closing import compute
from cadenza.parts.books.hashes import HashedEntry, MonthHash
from cadenza.parts.books.sums import balances_at, closed_balances, sums_of
from cadenza.store.store import Store
from cadenza.store.tables import audit_events, erasure

FIELD_OF = {"created_at": "created_at_ms"}  # the column of a hashed field, if its name is another
HASHED = tuple(FIELD_OF.get(name, name) for name in HashedEntry.__struct_fields__)
DERIVED = {"created_at": "created_at_ms", "amount": "amount_nano"}  # and the hashed column that each follows from
NAMED_MAX = 5  # problems
RENAMED = ("account.email", erasure.ERASED)  # after these events an account has another address


class Verified(msgspec.Struct, frozen=True):
    """Whether the entries of a closed month are those that were closed."""

    closed: ClosedMonth
    entries: int
    found: bytes  # the hash of what was read
    problems: list[str]
    unproven: Mapping[str, int] = {}  # of a file: of how many entries the account and the request cannot be compared


class ExportedEntry(msgspec.Struct, frozen=True):
    """A line of a file: what is hashed, and each column as it is written there."""

    hashed: HashedEntry
    columns: dict[str, Any]
    is_text: bool  # a file of CSV: an empty text is also nothing

    def shows(self, name: str, value: object) -> bool:
        """Whether a column says this."""
        if self.is_text:
            value = "" if value is None else str(escape_formula(value))
        return bool(self.columns[name] == value) and type(self.columns[name]) is type(value)


class _Comparison:
    """What the lines of a file say other than they should, and what cannot be told."""

    def __init__(self, renamed: set[str]) -> None:
        self._renamed = renamed
        self.problems: list[str] = []
        self.unproven = Counter[str]()

    def add(self, line: ExportedEntry, entry: dict[str, Any]) -> None:
        """Compare a line with the entry in the store."""
        hashed = {"created_at": line.hashed.created_at, "amount": line.hashed.amount_nano}
        stored = readable(entry)
        self._expect(line, readable({**entry, **hashed}), DERIVED)
        if not line.shows("account", stored["account"]):
            if line.hashed.account_id in self._renamed:
                self.unproven["account"] += 1
            else:
                self._expect(line, stored, ("account",))
        if not line.shows("refunded_nano", None):  # the refund may be younger than the export
            self._expect(line, stored, ("refunded_nano",))
        if all(line.shows(name, stored[name]) for name in REQUEST_FIELDS):
            return
        if entry["completion_id"] and _is_changed(entry):
            self.unproven["request"] += 1
        else:
            self._expect(line, stored, REQUEST_FIELDS)

    def _expect(self, line: ExportedEntry, expected: dict[str, Any], names: Iterable[str]) -> None:
        for name in names:
            if not line.shows(name, expected[name]):
                found = line.columns[name]
                self.problems.append(f"{name} of entry {line.hashed.id} is {found!r} and must be {expected[name]!r}")


async def verify_file(store: Store, month: str, path: Path) -> Verified:
    """Compute the hash of a closed month from a file, and compare its other columns with the hashed ones and the store.

    What cannot be compared is counted in `unproven`.
    """
    closed, before = await find_closed(store, month)
    found = MonthHash(month, (before and before.hash) or b"")
    compared = _Comparison(await audit_events.accounts_with(store, RENAMED))
    lines = read_export(path)
    line = next(lines, None)
    async for entry in export(store, None, Span(closed.starts_at, closed.ends_at)):
        while line and line.hashed.id < entry["id"]:  # the hash will differ
            found.add(line.hashed)
            line = next(lines, None)
        if line and line.hashed.id == entry["id"]:
            found.add(line.hashed)
            compared.add(line, entry)
            line = next(lines, None)
    while line:
        found.add(line.hashed)
        line = next(lines, None)
    problems = compared.problems[:NAMED_MAX]
    if more := len(compared.problems) - len(problems):
        problems.append(f"{more} other columns differ")
    if found.digest() != closed.hash:
        problems.insert(0, f"{path} has other entries")
    return Verified(closed, found.entries, found.digest(), problems, compared.unproven)


def read_export(path: Path) -> Iterator[ExportedEntry]:
    """The entries of a file that `cadenza ledger export` wrote, in either format. ValueError if it is no such file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            is_text = file.read(1) != "{"
            file.seek(0)
            for columns in _read_csv(file) if is_text else map(_read_object, file):
                values = {name: columns[name] for name in HASHED}
                if is_text:
                    values = {name: value or None for name, value in values.items()} | {"note": values["note"]}
                hashed = msgspec.convert([*values.values()], HashedEntry, strict=not is_text)
                yield ExportedEntry(hashed, columns, is_text)
    except (KeyError, TypeError, ValueError, csv.Error):  # msgspec's errors and those of UTF-8 are ValueErrors
        raise ValueError(f"{path} is not a file of 'cadenza ledger export'.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None


def _read_csv(file: Iterable[str]) -> Iterator[dict[str, Any]]:
    rows = csv.reader(file, strict=True)
    names = next(rows, [])
    for row in rows:
        yield _only_known([*zip(names, row, strict=True)])


def _read_object(line: str) -> dict[str, Any]:
    columns: dict[str, Any] = json.loads(line, object_pairs_hook=_only_known)
    return columns


def _only_known(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Each column once: of two, a reader would see the one and the hash would cover the other."""
    columns = dict(pairs)
    if len(columns) != len(pairs) or columns.keys() != set(EXPORT_FIELDS):
        raise ValueError
    return columns


def _is_changed(entry: dict[str, Any]) -> bool:
    """Whether the metering row was removed, or costs less than was charged: a late end has corrected it."""
    if entry["input_nano"] is None:
        return True
    if entry["kind"] != "charge":
        return False
    cached = entry["cached_tokens"]
    cached_nano = entry["input_nano"] if entry["cached_input_nano"] is None else entry["cached_input_nano"]
    cost_nano = (entry["prompt_tokens"] - cached) * entry["input_nano"] + cached * cached_nano
    cost_nano += entry["completion_tokens"] * entry["output_nano"] - entry["short_nano"]
    return bool(cost_nano != -entry["amount_nano"])


async def find_closed(store: Store, month: str) -> tuple[ClosedMonth, ClosedMonth | None]:
    """A closed month, and the one before it. ControlError if it is not closed."""
    span = month_span(month)
    found = await months.list_months(store)
    closed = next((one for one in found if one.month == month and one.hash), None)
    if closed is None:
        raise ControlError(f"The month {month} is not closed. Close it with 'cadenza ledger close {month}'.")
    return closed, months.month_before(found, span.start_ms)


async def verify_month(store: Store, month: str) -> Verified:
    """Compute the hash, the sums and the balances of a closed month anew, from the entries in the store."""
    closed, before = await find_closed(store, month)
    found = await compute(store, closed, before, closed.closed_at or 0)
    problems = []
    if found.hash != closed.hash:
        problems.append("its entries are not those that were closed")
    if sums_of(found) != sums_of(closed):
        problems.append("its entries do not add up to the sums that were closed")
    if sorted(map(repr, await closed_balances(store, month))) != sorted(
        map(repr, await balances_at(store, closed.ends_at, before))
    ):
        problems.append("the balances of accounts are not the sums of their entries")
    assert found.hash
    return Verified(closed, found.entries, found.hash, problems)


async def check_with_months(store: Store) -> LedgerState:
    """Check everything, and that the entries, sums and balances of each closed month are those that were closed."""
    findings = await check.find_violations(store)
    for one in await months.list_months(store):
        if one.hash:
            verified = await verify_month(store, one.month)
            findings += [check.Violation(problem, one.month, 0) for problem in verified.problems]
    return LedgerState(findings, await check.count(store), None)


check_all: CheckLedger = check_with_months
