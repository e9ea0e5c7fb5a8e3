"""A leak of each kind that is planted in a Postgres server is found, and its place is named."""

import gzip
import json
from collections.abc import AsyncIterator, Iterator

import asyncpg  # type: ignore[import-untyped]
import pytest

from cadenza.audit.needles import Needles
from cadenza.audit.search import Searched
from cadenza.audit.servers import (
    POSTGRES_LOG,
    POSTGRES_PAGES,
    POSTGRES_TABLES,
    POSTGRES_VIEWS,
    POSTGRES_WAL,
    search_postgres,
)
from cadenza.store.postgres.connection import Connection
from tests.postgres import OWNER, Postgres


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    with postgres.migrated_database() as url:
        yield url


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


def found_in(results: list[Searched]) -> set[tuple[str, str, str, str]]:
    """Needle, place, column or view, and form. The names of files are numbers."""
    hits = [hit for searched in results for hit in searched.hits]
    return {(hit.needle, hit.place, hit.where if hit.place != POSTGRES_PAGES else "", hit.form) for hit in hits}


async def test_a_clean_postgres_has_no_hits(url: str) -> None:
    """A new database is searched whole: tables, statistics, log, write-ahead log and files."""
    needles = Needles()
    needles.make("a user message")
    results = await search_postgres(needles, url)
    assert [searched.hits for searched in results] == [[]] * 5
    assert all(searched.size_bytes > 0 for searched in results if searched.place != POSTGRES_LOG)
    assert [len(searched.skipped) for searched in results] == [0, 0, 0, 0, 1]  # the last one is always said


async def test_leaks_in_postgres_are_found(url: str, connection: Connection) -> None:
    """A jsonb, a compressed blob, statistics, a failed statement in the log and a deleted row."""
    needles = Needles()
    jsonb, blob, deleted, logged, sampled = (
        needles.make(name) for name in ("jsonb", "blob", "deleted", "logged", "sampled")
    )
    await connection.execute("CREATE TABLE leaks (note text, data jsonb, packed bytea)")
    insert = "INSERT INTO leaks VALUES ($1, $2, $3)"
    await connection.execute("CHECKPOINT")
    await connection.execute(insert, deleted.text, None, None)
    await connection.execute("DELETE FROM leaks")
    for _ in range(3):
        await connection.execute(insert, sampled.text, None, None)
    await connection.execute("ANALYZE leaks")
    await connection.execute("DELETE FROM leaks")
    await connection.execute(insert, None, json.dumps({"content": jsonb.text}), gzip.compress(blob.text.encode()))
    with pytest.raises(asyncpg.UndefinedTableError):
        await connection.execute(f"SELECT * FROM none WHERE text = '{logged.word}'")
    found = found_in(await search_postgres(needles, url))
    assert {
        ("jsonb", POSTGRES_TABLES, "public.leaks.data", "plain"),
        ("blob", POSTGRES_TABLES, "public.leaks.packed", "plain in gzip"),
        ("sampled", POSTGRES_VIEWS, "pg_stats", "plain"),
        ("logged", POSTGRES_LOG, "standard error of the server", "plain"),
    } <= found
    assert {place for needle, place, *_ in found if needle == "deleted"} & {POSTGRES_WAL, POSTGRES_PAGES}
    assert not {needle for needle, place, *_ in found if place == POSTGRES_TABLES} & {"deleted", "sampled"}


async def test_what_a_role_may_not_read_is_said(url: str, connection: Connection) -> None:
    """A role without rights searches what it can, and the other places are listed with the reason."""
    await connection.execute("CREATE ROLE auditor LOGIN; CREATE TABLE private (text text)")
    try:
        results = await search_postgres(Needles(), url.replace(f"{OWNER}@", "auditor@"))
    finally:
        await connection.execute("DROP ROLE auditor")
    assert all(searched.skipped for searched in results)
    assert "public.accounts" in results[0].skipped[0]
    assert all("superuser" in searched.skipped[0] for searched in results[2:])
