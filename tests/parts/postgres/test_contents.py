"""A leak of each kind that is planted in a Postgres server is found, and its place is named."""

import gzip
import json
from collections.abc import AsyncIterator, Iterator

import asyncpg  # type: ignore[import-untyped]
import pytest

from cadenza.parts.postgres.connection import Connection
from cadenza.parts.postgres.contents import all_contents
from cadenza.parts.retention.canaries import CanarySet
from cadenza.parts.retention.places import search_server
from cadenza.parts.retention.search import PlaceSearch
from cadenza.store.contents import POSTGRES_LOG, POSTGRES_PAGES, POSTGRES_TABLES, POSTGRES_VIEWS, POSTGRES_WAL
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


AGE_S = 10.0


async def search_postgres(canaries: CanarySet, url: str) -> list[PlaceSearch]:
    return await search_server(canaries, all_contents(url, AGE_S))


def found_in(results: list[PlaceSearch]) -> set[tuple[str, str, str, str]]:
    """Canary, place, column or view, and form. The names of files are numbers."""
    return {
        (hit.canary, search.place, hit.where if search.place != POSTGRES_PAGES else "", hit.form)
        for search in results
        for hit in search.hits
    }


async def test_leaks_in_postgres_are_found(url: str, connection: Connection) -> None:
    """A jsonb, a compressed blob, statistics, a failed statement in the log and a deleted row; nothing else is."""
    canaries = CanarySet()
    canaries.make("not there")
    jsonb, blob, deleted, logged, sampled = (
        canaries.make(name) for name in ("jsonb", "blob", "deleted", "logged", "sampled")
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
    results = await search_postgres(canaries, url)
    assert all(searched.size_bytes > 0 for searched in results)
    assert [searched.place for searched in results if searched.skipped] == [POSTGRES_PAGES]
    found = found_in(results)
    assert {canary for canary, *_ in found} == {"jsonb", "blob", "deleted", "logged", "sampled"}
    assert {
        ("jsonb", POSTGRES_TABLES, "public.leaks.data", "plain"),
        ("blob", POSTGRES_TABLES, "public.leaks.packed", "plain in gzip"),
        ("sampled", POSTGRES_VIEWS, "pg_stats", "plain"),
        ("logged", POSTGRES_LOG, "standard error of the server", "plain"),
    } <= found
    assert {place for canary, place, *_ in found if canary == "deleted"} & {POSTGRES_WAL, POSTGRES_PAGES}
    assert not {canary for canary, place, *_ in found if place == POSTGRES_TABLES} & {"deleted", "sampled"}


async def test_what_a_role_may_not_read_is_said(url: str, connection: Connection) -> None:
    """A role without rights searches what it can, and the other places are listed with the reason."""
    await connection.execute("CREATE ROLE auditor LOGIN; CREATE TABLE private (text text)")
    try:
        results = await search_postgres(CanarySet(), url.replace(f"{OWNER}@", "auditor@"))
    finally:
        await connection.execute("DROP ROLE auditor")
    assert all(searched.skipped for searched in results)
    assert "public.access_tokens" in results[0].skipped[0]
    assert all("superuser" in searched.skipped[0] for searched in results)
