"""What reading a long ledger takes, on SQLite and on Postgres: `python -m bench.long_ledger` prints the table.

A store is built with 10,000 accounts and a key each, of which the first has a quarter of all requests. A million
charges take minutes to build, on each store. CPU time is that of this process, so on Postgres it is a small part.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path

from tests.postgres import OWNER

from bench import backends
from bench.bulk import FIRST_ACCOUNT, WAIT_S, BulkStore
from bench.figures import Line, Section
from bench.gateways.install import WORK_DIR
from bench.machine import CannotRun
from bench.report import render_section
from cadenza.control.money.statement import export_statement, read_statement
from cadenza.core.records import Owner
from cadenza.core.spans import Span
from cadenza.core.usage_report import GROUPS
from cadenza.ledger import check, statement
from cadenza.ledger.export import export
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate
from cadenza.store.store import Store
from cadenza.store.tables import usage

ACCOUNTS = 10_000
CHARGES = 1_000_000
EXPORTED = 100_000
BUSY, ORDINARY = f"acct_bench_{FIRST_ACCOUNT}", f"acct_bench_{FIRST_ACCOUNT + 1}"
EMAIL = "1@example.org"  # of the ordinary account


def main() -> int:
    options = read_options()
    try:
        with tempfile.TemporaryDirectory(prefix="long-", dir=_work_dir()) as name:
            sections = [measure("SQLite", f"sqlite:///{name}/cadenza.db", options.charges)]
        if options.postgres:
            with backends.postgres() as socket_path:
                url = f"postgresql://{OWNER}@/postgres?host={socket_path.parent}"
                sections.append(measure("Postgres", url, options.charges))
    except CannotRun as reason:
        sys.stderr.write(f"bench: {reason}\n")
        return 1
    for section in sections:
        sys.stdout.write(render_section(section) + "\n\n")
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.long_ledger", description="Measure reads of a long ledger.")
    parser.add_argument("--charges", type=int, default=CHARGES, help="the length of the ledger [%(default)s]")
    parser.add_argument("--postgres", action="store_true", help="on Postgres too")
    return parser.parse_args()


def measure(name: str, url: str, charges: int) -> Section:
    asyncio.run(_migrate(url))
    bulk = BulkStore(url)
    bulk.grow_accounts(ACCOUNTS)
    bulk.grow_charges(charges)
    lines = asyncio.run(_measure(url, bulk.month))
    return Section(title=f"{name}, {charges:,} charges", note=f"{ACCOUNTS:,} accounts.", lines=lines)


async def _migrate(url: str) -> None:
    store = open_store(url, WAIT_S)
    await migrate(store)
    await store.close()


async def _measure(url: str, month: Span) -> list[Line]:
    store = open_store(url, WAIT_S)
    try:
        return [await _time(what, reading) for what, reading in readings(store, month)]
    finally:
        await store.close()


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


def _work_dir() -> Path:
    WORK_DIR.mkdir(exist_ok=True)
    return WORK_DIR


if __name__ == "__main__":
    sys.exit(main())
