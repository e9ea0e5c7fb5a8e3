"""Versions of classes: what makes two of them the same, and what a promotion keeps."""

import msgspec
import pytest

from cadenza.core.classes import ClassVersion
from cadenza.core.records import Route, Timeouts

MAIN = Route("acme", "large", 1000, 100)
SPARE = Route("backup", "small", 1000, 100, order=1)
VERSION = ClassVersion(class_id="forte", number=3, routes=(MAIN, SPARE), character="Be brief.", actor="config")


def digest_with(**changes: object) -> bytes:
    route = msgspec.structs.replace(MAIN, **changes)
    return msgspec.structs.replace(VERSION, routes=(route, SPARE)).digest


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": 1, "system": "one or two"[:3]},
        {"timeouts": Timeouts(first_token_s=60, idle_s=float("60"))},
        {"omit": (), "fields": ""},
    ],
)
def test_a_default_that_is_written_out_changes_no_digest(changes: dict[str, object]) -> None:
    """Routes that are equal have the same digest, however they were written."""
    assert digest_with(**changes) == VERSION.digest


@pytest.mark.parametrize("changes", [{"model": "larger"}, {"weight": 2}, {"timeouts": Timeouts(idle_s=61)}])
def test_another_route_has_another_digest(changes: dict[str, object]) -> None:
    """What changes a reply changes the digest."""
    assert digest_with(**changes) != VERSION.digest


def test_the_digest_survives_the_store() -> None:
    """Routes that are written as JSON and read again have the same digest; the number and the actor do not count."""
    routes = msgspec.json.decode(msgspec.json.encode(VERSION.routes), type=tuple[Route, ...])
    assert msgspec.structs.replace(VERSION, routes=routes, number=9, actor="").digest == VERSION.digest
    assert msgspec.structs.replace(VERSION, character="Be long.").digest != VERSION.digest


def test_a_candidate_replaces_the_main_routes() -> None:
    """The fallbacks stay, but for one that is the candidate itself."""
    tried = msgspec.structs.replace(SPARE, order=7, weight=5)
    assert VERSION.with_candidate(tried).routes == (msgspec.structs.replace(SPARE, order=0, weight=1),)
    other = Route("acme", "other", 1000, 100)
    assert VERSION.with_candidate(other).routes == (other, SPARE)
