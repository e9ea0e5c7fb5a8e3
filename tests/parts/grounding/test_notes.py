"""Notes on both databases: their order and bounds, whose they are, and what the look-up of a key says about them."""

import asyncio

import pytest

from cadenza.control.account.erasure import erase_account
from cadenza.core.errors import ControlError, Unknown
from cadenza.core.records import CLASSES, COMMAND_LINE, Owner
from cadenza.fleet.presence import USUAL_BOUNDS
from cadenza.parts.grounding.note_rows import OwnedNote, texts_of
from cadenza.parts.grounding.notes import NOTES_MAX, add_note, change_note, list_notes, remove_note
from cadenza.parts.site.accounts import choose, preferences_of
from cadenza.store.schema import accounts
from cadenza.store.store import Store
from cadenza.store.tables import audit_events, keys
from cadenza.store.tables.accounts import Account, Preferences
from tests.postgres import Postgres
from tests.store.fleet import HOUR_S, member
from tests.store.moves import opened
from tests.store.rows import NOW_MS, add_account, add_key, rows_of, run_sql

OWNER, OTHER = Owner("acct_a", "acct_a@example.org"), Owner("acct_b", "acct_b@example.org")


@pytest.fixture(autouse=True)
async def owner(store: Store) -> Account:
    await add_account(store, OTHER.account_id)
    return await add_account(store, OWNER.account_id)


async def add(store: Store, text: str = "a note", now_ms: int = NOW_MS, owner: Owner = OWNER) -> OwnedNote:
    return await add_note(store, owner, text, now_ms)


async def fill(store: Store, count: int) -> None:
    """So many notes with one statement."""
    numbers = f"WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < {count}) SELECT n FROM t"
    await run_sql(
        store,
        f"INSERT INTO notes SELECT 'note_' || n, 'acct_a', 'many', 1, 1 FROM ({numbers}) AS numbers",
        f"UPDATE accounts SET note_count = {count} WHERE id = 'acct_a'",
    )


async def switches(store: Store, digest: bytes) -> tuple[bool, bool]:
    """What the look-up of a key says: whether replies may search, and whether there are notes to use."""
    found = await keys.look_up(store, digest)
    assert found
    return found.principal.may_search, found.principal.has_notes


async def count_of(store: Store) -> int:
    return next(int(row.note_count) for row in await rows_of(store, accounts) if row.id == OWNER.account_id)


async def test_notes_are_listed_oldest_first(store: Store) -> None:
    """Every note of the account is listed once, and no note of another account."""
    made = [await add(store, f"note {number}", NOW_MS + number) for number in (2, 0, 1)]
    await add(store, owner=OTHER)
    expected = sorted(made, key=lambda note: note.created_at)
    assert await list_notes(store, OWNER) == expected
    assert await texts_of(store, OWNER.account_id) == ["note 0", "note 1", "note 2"]


@pytest.mark.parametrize("note_id", ["", "note_unknown", "note_\0", "nöte", "n" * 5000, "\udc80"])
async def test_an_unknown_note_cannot_be_touched(store: Store, note_id: str) -> None:
    """Whatever is given as an id, the answer is the same."""
    for by in (OWNER, COMMAND_LINE):
        with pytest.raises(Unknown):
            await change_note(store, by, note_id, "words", NOW_MS)
        with pytest.raises(Unknown):
            await remove_note(store, by, note_id, NOW_MS)


async def test_a_note_of_another_account_cannot_be_touched(store: Store) -> None:
    """It is unknown to everybody but its owner and the command line, whose operator acts on every account."""
    foreign = await add(store, owner=OTHER)
    with pytest.raises(Unknown):
        await change_note(store, OWNER, foreign.id, "words", NOW_MS)
    with pytest.raises(Unknown):
        await remove_note(store, OWNER, foreign.id, NOW_MS)
    assert await list_notes(store, OTHER) == [foreign]
    await remove_note(store, COMMAND_LINE, foreign.id, NOW_MS)
    assert await list_notes(store, OTHER) == []


async def test_an_account_has_a_bounded_number_of_notes(store: Store) -> None:
    """Of several notes that are added at once, only as many are taken as there is room for; removing makes room."""
    await fill(store, NOTES_MAX - 1)
    done = await asyncio.gather(*(add(store) for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(one, OwnedNote) for one in done) == 1
    assert {str(one) for one in done if not isinstance(one, OwnedNote)} == {
        "An account has at most 200 notes. Delete one first."
    }
    await remove_note(store, OWNER, "note_1", NOW_MS)
    await add(store)
    assert (len(await list_notes(store, OWNER)), await count_of(store)) == (NOTES_MAX, NOTES_MAX)


async def test_a_note_that_is_removed_twice_is_counted_once(store: Store) -> None:
    """Of two that remove the same note, one succeeds, and the account's count stays right."""
    note = await add(store)
    await add(store)
    done = await asyncio.gather(*(remove_note(store, OWNER, note.id, NOW_MS) for _ in range(2)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["NoneType", "Unknown"]
    assert await count_of(store) == 1


async def test_the_look_up_of_a_key_tells_of_notes(store: Store, owner: Account) -> None:
    """There are notes to use from the first one to the last, while the account uses memory."""
    digest = await add_key(store)
    assert await switches(store, digest) == (True, False)
    first, second = await add(store), await add(store)
    assert await switches(store, digest) == (True, True)
    chosen = Preferences("forte", "system", uses_search=False, uses_memory=False)
    await choose(store, OWNER, owner, chosen, CLASSES, NOW_MS)
    assert await switches(store, digest) == (False, False)
    await choose(store, OWNER, owner, preferences_of(owner), CLASSES, NOW_MS)
    await remove_note(store, OWNER, first.id, NOW_MS)
    assert await switches(store, digest) == (True, True)
    await remove_note(store, OWNER, second.id, NOW_MS)
    assert await switches(store, digest) == (True, False)


async def test_the_audit_trail_has_no_text(store: Store) -> None:
    """Every change is in it, with the id of the note alone; a change that is refused is not."""
    note = await add(store, "my secret plan")
    await change_note(store, OWNER, note.id, "my other plan", NOW_MS)
    with pytest.raises(ControlError):
        await add(store, " ")
    await remove_note(store, COMMAND_LINE, note.id, NOW_MS)
    found = [
        (one.event, one.actor, one.subject, one.detail)
        for one in reversed(await audit_events.list_newest(store, OWNER.account_id))
    ]
    assert found == [
        ("note.add", OWNER.name, note.id, ""),
        ("note.change", OWNER.name, note.id, ""),
        ("note.remove", "command line", note.id, ""),
    ]


async def test_every_process_knows_of_the_first_note_at_once(postgres: Postgres) -> None:
    """A process that keeps the key looks it up again after the first note, the last one, and a switch."""
    with postgres.migrated_database() as url:
        async with opened(url) as command, member(url, USUAL_BOUNDS) as one, member(url, USUAL_BOUNDS) as two:
            owner, digest = await add_account(command), await add_key(command)

            async def seen() -> set[tuple[bool, bool]]:
                found = [await process.key_cache.find(digest) for process in (one, two)]
                return {(key.principal.may_search, key.principal.has_notes) for key in found if key}

            async with asyncio.timeout(HOUR_S):
                assert await seen() == {(True, False)}
                note = await add(command)
                assert await seen() == {(True, True)}
                chosen = Preferences("forte", "system", uses_search=False, uses_memory=False)
                await choose(command, OWNER, owner, chosen, CLASSES, NOW_MS)
                assert await seen() == {(False, False)}
                await choose(command, OWNER, owner, preferences_of(owner), CLASSES, NOW_MS)
                await remove_note(command, OWNER, note.id, NOW_MS)
                assert await seen() == {(True, False)}


async def test_an_erased_account_gets_no_note(store: Store) -> None:
    """Its notes are gone, and its id takes no other."""
    await add(store)
    await erase_account(store, "acct_a@example.org", COMMAND_LINE, NOW_MS)
    assert await list_notes(store, OWNER) == []
    with pytest.raises(ControlError):
        await add(store)
