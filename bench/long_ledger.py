"""What reading a long ledger takes, on SQLite and on Postgres: `make bench ARGS="--parts long-ledger"`.

A store is built with 10,000 accounts and a key each, of which the first has a quarter of all requests. A million
charges take minutes to build, on each store. CPU time is that of this process, so on Postgres it is a small part.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Iterator

from bench import backends
from bench.bulk import FIRST_ACCOUNT, in_store
from bench.figures import Line, Section
from bench.fleet import make_accounts
from bench.measure import Site
from cadenza.control.money.statement import export_statement, read_statement
from cadenza.core.records import Owner
from cadenza.core.spans import Span
from cadenza.core.usage_report import GROUPS
from cadenza.ledger import check, statement
from cadenza.ledger.export import export
from cadenza.store.store import Store
from cadenza.store.tables import usage

ACCOUNTS = 10_000
CHARGES, CHARGES_QUICK = 1_000_000, 50_000
EXPORTED = 100_000
BUSY, ORDINARY = f"acct_bench_{FIRST_ACCOUNT}", f"acct_bench_{FIRST_ACCOUNT + 1}"
EMAIL = "1@example.org"  # of the ordinary account


def measure_long_ledger(site: Site) -> list[Section]:
    sections = [measure("SQLite", f"sqlite:///{site.folder}/long.db", site)]
    with backends.postgres() as socket_path:
        return [*sections, measure("Postgres", backends.url_of(socket_path), site)]


def measure(name: str, url: str, site: Site) -> Section:
    charges, lines = CHARGES_QUICK if site.is_quick else CHARGES, list[Line]()
    site.step(f"{name}: a ledger with {charges:,} charges")
    bulk = make_accounts(url, ACCOUNTS)
    bulk.grow_charges(charges)

    async def read_all(store: Store) -> None:
        for what, reading in readings(store, bulk.month):
            lines.append(await _time(what, reading))

    asyncio.run(in_store(url, read_all))
    return Section(title=f"{name}, {charges:,} charges", note=f"{ACCOUNTS:,} accounts.", lines=lines)


def readings(store: Store, month: Span) -> Iterator[tuple[str, Awaitable[object]]]:
    yield "`ledger check` of open entries", check.find_violations(store)
    yield "statement of a month, an ordinary account", read_statement(store, Owner(ORDINARY, ""), span=month)
    yield "its file", _read(export_statement(store, Owner(ORDINARY, ""), month))
    for group in GROUPS:
        yield f"its usage by {group}", usage.report(store, ORDINARY, month, group)
    yield "`ledger export --account --month`", _read(export(store, EMAIL, month))
    yield "usage of a month, an account with a quarter of all charges", usage.report(store, BUSY, month, "day")
    yield "its balances before and after a month", statement.sum_entries(store, BUSY, month)
    yield "usage of a month, all accounts", usage.report(store, None, month, "day")
    yield f"`ledger export --month`, all accounts, {EXPORTED:,} entries", _read(export(store, None, month))


async def _read(found: AsyncIterator[object]) -> None:
    """Read as many as EXPORTED."""
    numbers = itertools.count(1)
    async for _ in found:
        if next(numbers) == EXPORTED:
            return


async def _time(what: str, reading: Awaitable[object]) -> Line:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await reading
    figures = {"elapsed_s": time.perf_counter() - began_s, "cpu_s": time.process_time() - cpu_s}
    return Line(subject=what, figures=figures)
