"""A leak of each kind that is planted in Valkey is found, and its place is named."""

import gzip
from pathlib import Path

from cadenza.parts.retention.canaries import CanarySet
from cadenza.parts.retention.places import search_server
from cadenza.parts.retention.search import PlaceSearch
from cadenza.parts.valkey.connection import PREFIX, ValkeyAddress, connected
from cadenza.parts.valkey.contents import KEYS, MEMORY, all_contents, empty_database
from tests.valkey import Valkey, running_valkey

WAIT_S = 30.0


async def search_valkey(canaries: CanarySet, url: str) -> list[PlaceSearch]:
    return await search_server(canaries, all_contents(url, WAIT_S))


async def test_a_clean_valkey_has_no_hits(valkey: Valkey) -> None:
    """An empty server is searched, and its log is said to be elsewhere."""
    canaries = CanarySet()
    canaries.make("a user message")
    results = await search_valkey(canaries, valkey.url)
    assert [dict(searched.hits) for searched in results] == [{}, {}, {}]
    assert [searched.skipped for searched in results] == [[], [], ["its log goes to its standard output"]]
    assert results[0].size_bytes > 0


async def test_leaks_in_valkey_are_found(valkey: Valkey) -> None:
    """Each type of value, the name of a key, another database, and a command in the slow log are found."""
    canaries = CanarySet()
    kinds = ("string", "hash field", "hash value", "list", "set", "zset", "stream", "key name", "slow log", "other")
    words = {kind: canaries.make(kind).word for kind in kinds}
    valkey.command("SET", "a", words["string"])
    valkey.command("HSET", "b", words["hash field"], words["hash value"])
    valkey.command("RPUSH", "c", "first", words["list"])
    valkey.command("SADD", "d", words["set"])
    valkey.command("ZADD", "e", "1", words["zset"])
    valkey.command("XADD", "f", "*", "field", words["stream"])
    valkey.command("SET", f"key-{words['key name']}", "1")
    valkey.command("CONFIG", "SET", "slowlog-log-slower-than", "0")
    valkey.command("ECHO", words["slow log"])
    valkey.command("CONFIG", "SET", "slowlog-log-slower-than", "10000")
    valkey.command("SET", "g", words["other"])
    valkey.command("MOVE", "g", "7")
    results = await search_valkey(canaries, valkey.url)
    valkey.command("SLOWLOG", "RESET")
    found = {(hit.canary, searched.place, hit.where) for searched in results for hit in searched.hits}
    named = {kind: f"database 0, key {key}" for kind, key in zip(kinds, "abbcdef", strict=False)}
    assert {(kind, KEYS, where) for kind, where in named.items()} <= found
    assert ("key name", KEYS, "a name") in found
    assert ("slow log", MEMORY, "the slow log") in found
    assert ("other", KEYS, "database 7, key g") in found


async def test_the_database_of_an_audit_is_emptied(valkey: Valkey) -> None:
    """Our keys in it are deleted at the end, and other keys and databases are left alone."""
    valkey.command("SET", "a", "1")
    async with empty_database(valkey.url) as url, connected(ValkeyAddress.parse(url), WAIT_S, WAIT_S) as connection:
        await connection.ask("MSET", f"{PREFIX}key", 1, "another", 1)
    assert b"\r\ndb15:keys=1," in valkey.command("INFO", "keyspace")
    assert valkey.command("GET", "a") == b"$1\r\n1\r\n"


async def test_files_of_valkey_are_searched(tmp_path: Path) -> None:
    """A snapshot and the log are found in the server's folder; with compression it is said what may be missing."""
    canaries = CanarySet()
    word = canaries.make("a user message").word
    settings = ("--dir", str(tmp_path), "--logfile", str(tmp_path / "server.log"), "--rdbcompression", "no")
    with running_valkey(*settings) as server:
        server.command("SET", "a", word)
        server.command("SAVE")
        (tmp_path / "server.log").write_bytes(gzip.compress(word.encode()))
        *_, files = await search_valkey(canaries, server.url)
        server.command("CONFIG", "SET", "rdbcompression", "yes")
        *_, again = await search_valkey(canaries, server.url)
    assert {hit.where for hit in files.hits} == {"dump.rdb", "log"}
    assert files.skipped == []
    assert "compressed" in again.skipped[0]
