"""A store and a shared state of the audit's own, on the same servers as the real ones, removed at the end.

On SQLite it is a file; on Postgres a database, so the role must be allowed to create one; on Valkey a database that
has no keys. What the audit has not made is not touched.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from cadenza.core.errors import ControlError
from cadenza.fleet.valkey.connection import (
    PREFIX,
    PROBE_S,
    Answer,
    ValkeyAddress,
    ValkeyConnection,
    ValkeyUnreachable,
    ask,
    open_connection,
)

POSTGRES = ("postgresql://", "postgres://")
CONNECT_S = 10.0
DATABASES = range(15, 0, -1)  # of Valkey, which has 16 unless it is told otherwise; 0 is left to others
KEYS_PER_SCAN = 1000
NOT_PERMITTED = (
    "The audit needs a database of its own on this Postgres server, and the role may not create one. Run "
    "'ALTER ROLE {role} CREATEDB' for the time of the audit, or name an empty database with --store."
)
NO_EMPTY_DATABASE = (
    "The audit needs a database of Valkey of its own, and none of the databases 1 to 15 is empty. "
    "Empty one of them, or run the audit with a config whose [shared_state] names another server."
)
LOST_POSTGRES = "Postgres was lost during the audit: {}. When it answers again, drop the database {} of the audit."
LOST_VALKEY = (
    "Valkey was lost during the audit: {}. When it answers again, empty its database {}, which had no other keys."
)


@asynccontextmanager
async def private_store(url: str, folder: Path, given: str | None = None) -> AsyncIterator[str]:
    """The address of an empty store of the same kind as `url`. `given` is an empty database that the user names."""
    if given:
        if not given.startswith(POSTGRES):
            raise ValueError("--store is the address of an empty Postgres database; SQLite needs none.")
        yield given
    elif url.startswith(POSTGRES):
        async with _new_database(url) as made:
            yield made
    else:
        yield f"sqlite:///{folder / 'cadenza.db'}"


@asynccontextmanager
async def _new_database(url: str) -> AsyncIterator[str]:
    from cadenza.store.postgres import contents  # noqa: PLC0415 slow to import
    from cadenza.store.postgres.connection import PostgresAddress, PostgresBounds, connect  # noqa: PLC0415 the same

    bounds = PostgresBounds(connect_s=CONNECT_S)
    name = f"cadenza_audit_{secrets.token_hex(6)}"
    try:
        connection = await connect(PostgresAddress(url), bounds)
    except contents.ERRORS as error:
        raise ControlError(f"Postgres cannot be reached: {type(error).__name__}.") from None
    try:
        try:
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        except contents.ERRORS as error:
            if not contents.is_forbidden(error):
                raise ControlError(f"Postgres made no database for the audit: {type(error).__name__}.") from None
            raise ControlError(NOT_PERMITTED.format(role=await connection.fetchval("SELECT current_user"))) from None
        try:
            yield urlsplit(url)._replace(path=f"/{name}").geturl()
        finally:
            try:
                await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            except contents.ERRORS as error:
                raise ControlError(LOST_POSTGRES.format(type(error).__name__, name)) from None
    finally:
        connection.terminate()


@asynccontextmanager
async def private_shared_state(url: str) -> AsyncIterator[str]:
    """The address of an empty shared state of the same kind as `url`."""
    if url.startswith("memory:"):
        yield url
        return
    try:
        made = await _empty_database(url)
    except ValkeyUnreachable as error:
        raise ControlError(f"Valkey cannot be used: {error}.") from None
    try:
        yield made
    finally:
        address = ValkeyAddress.parse(made)
        try:
            await _with_valkey(address, _remove_ours)
        except ValkeyUnreachable as error:
            raise ControlError(LOST_VALKEY.format(error, address.database)) from None


async def _empty_database(url: str) -> str:
    address = ValkeyAddress.parse(url)
    for number in DATABASES:
        try:
            # The test write of the connection leaves a key there for a second.
            size = await _with_valkey(msgspec.structs.replace(address, database=number), _count_others)
        except ValkeyUnreachable:
            continue  # there are fewer databases, or this one is not permitted
        if size == 0:
            return with_database(url, number)
    raise ControlError(NO_EMPTY_DATABASE)


def with_database(url: str, number: int) -> str:
    """The same server, with another database."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        query = {**dict(parse_qsl(parts.query)), "db": str(number)}
        return parts._replace(query=urlencode(query)).geturl()
    return parts._replace(path=f"/{number}").geturl()


async def _with_valkey(address: ValkeyAddress, work: Callable[[ValkeyConnection], Awaitable[int]]) -> int:
    make = partial(ValkeyConnection, PROBE_S, lambda _: None, lambda _: None)
    connection = await open_connection(address, make)
    try:
        return await work(connection)
    finally:
        connection.end("done")


async def _count_others(connection: ValkeyConnection) -> int:
    """The number of keys, without the one of the connection's own test."""
    probe = f"{PREFIX}probe"
    size: Answer = await ask(connection.send, "DBSIZE")
    own: Answer = await ask(connection.send, "EXISTS", probe)
    return int(size) - int(own)


async def _remove_ours(connection: ValkeyConnection) -> int:
    """Delete the keys of the service, and nothing else."""
    cursor, count = b"0", 0
    while True:
        cursor, keys = await ask(connection.send, "SCAN", cursor, "MATCH", f"{PREFIX}*", "COUNT", KEYS_PER_SCAN)
        if keys:
            count += await ask(connection.send, "DEL", *keys)
        if cursor == b"0":
            return count
