"""The model of the databases does what Postgres and SQLite do, statement by statement."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update

from cadenza.fleet import presence
from cadenza.ledger import cap_rows, credit, marks, rows, transaction
from cadenza.store import schema
from cadenza.store.statements import Statement, Values
from cadenza.store.tables import accounts, epochs, keys
from tests.migrated import copy_migrated_store
from tests.postgres import Postgres, running_postgres
from tests.simulation.compare import Comparison, DeadlockFound, replay
from tests.simulation.database import Deadlock, ModelDatabase, ModelSession, Refused, StatementResult
from tests.simulation.histories import DIGESTS, first_rows, names_of
from tests.simulation.sides import Did, ModelSide, PostgresSide, SqliteSide

SESSIONS = 3
POSTGRES_SEEDS = 6
SQLITE_SEEDS = 12
REWRITE = Statement(update(schema.entries).values(note="x"))
ERASE = Statement(delete(schema.entries))
LOCK_A = (transaction.LOCK_ACCOUNTS.one, {"process": "proc_1", "id": "acct_a"})
GRANT_A = (credit.GRANT, {"amount": 10, "account": "acct_a", "most": 1000, "granted": 5})
CHARGE = {"account_id": "acct_a", "kind": "charge", "amount_nano": -1, "note": "", "created_at": 1, "granted_nano": 0}
RESERVE_B = (rows.ADD_RESERVE, {"account_id": "acct_b", "process": "proc_2", "amount_nano": 5, "has_spare": False})
WAITS = None


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture
async def postgres(server: Postgres) -> AsyncIterator[PostgresSide]:
    with server.migrated_database() as url:
        async with AsyncExitStack() as stack:
            side = await PostgresSide.connect(url, SESSIONS)
            stack.push_async_callback(side.close)
            yield side


@pytest.fixture
async def both(postgres: PostgresSide) -> Comparison:
    """The model and Postgres, with the same first rows. They are compared after every step."""
    comparison = Comparison(ModelSide("postgres", SESSIONS), postgres, SESSIONS)
    for chosen in first_rows():
        await comparison.run(0, chosen)
    await comparison.end(0, commits=True)
    return comparison


@pytest.fixture
async def lite(tmp_path: Path) -> AsyncIterator[Comparison]:
    """The model and SQLite, with the same first rows."""
    copy_migrated_store(tmp_path / "cadenza.db")
    side = SqliteSide(tmp_path / "cadenza.db", SESSIONS)
    comparison = Comparison(ModelSide("sqlite", SESSIONS), side, SESSIONS)
    for chosen in first_rows():
        await comparison.run(0, chosen)
    await comparison.end(0, commits=True)
    yield comparison
    side.close()


def charge(completion_id: str) -> tuple[Statement, Values]:
    return rows.ADD_ENTRY, {**CHARGE, "completion_id": completion_id}


def mark(process: str) -> tuple[Statement, Values]:
    text = {"completion_id": "chatcmpl-1", "request_id": "x", "class_id": "forte", "account_id": "acct_a"}
    counts = {"prompt_tokens": 1, "delivered_tokens": 1, "input_nano": 1, "output_nano": 1, "cached_input_nano": None}
    more = {"key_id": "key_a", "stream": True, "started_at": 1, "version": 1}
    return marks.MARK, {**text, **counts, **more, "process": process}


def batch(process: str, **arrays: list[Any]) -> tuple[Statement, Values]:
    """A batch of the ledger, with nothing but these arrays."""
    return rows.WRITE, {**{name: [] for name in names_of(rows.WRITE)}, "process": process, **arrays}


def values_of(did: Did | None) -> Any:
    assert did is not None
    assert not did.refused
    return did.rows


async def test_a_statement_sees_what_was_committed_when_it_began_and_its_own_changes(both: Comparison) -> None:
    """Changes of another transaction are visible to the first statement after its commit."""
    read = (credit.FREE, {"account": "acct_a"})
    await both.run(0, GRANT_A)
    assert values_of(await both.run(0, read)) == ((40,),)
    assert values_of(await both.run(1, read)) == ((30,),)
    await both.end(0, commits=True)
    assert values_of(await both.run(1, read)) == ((40,),)
    await both.finish()


async def test_after_a_wait_the_locked_row_is_new_and_the_joined_row_is_old(both: Comparison) -> None:
    """LOCK_ACCOUNTS that waited has the newest balance, and the reserve of when it began."""
    await both.run(0, LOCK_A)
    moved: dict[str, list[Any]] = {"a_account": ["acct_a"], "a_paid": [-5], "a_more": [-5], "a_granted": [-5]}
    reserve: dict[str, list[Any]] = {"r_account": ["acct_a"], "r_before": [20], "r_after": [15], "r_spare": [False]}
    await both.run(0, batch("proc_1", **moved, **reserve))
    assert await both.run(1, LOCK_A) is WAITS
    went_on = await both.end(0, commits=True)
    assert went_on[1].rows == (("acct_a", 45, 15, 20, 0, 0, 0, -5, 0),)
    assert values_of(await both.run(1, LOCK_A)) == (("acct_a", 45, 15, 15, 0, 0, 0, -5, 0),)
    await both.finish()


async def test_after_a_wait_the_conditions_are_checked_again(both: Comparison) -> None:
    """Of two transactions that take the last credit, the second one takes nothing."""
    take = (credit.TAKE, {"amount": 30, "account": "acct_a", "granted": 0})
    await both.run(0, take)
    assert await both.run(1, take) is WAITS
    assert (await both.end(0, commits=True))[1].count == 0
    await both.finish()


async def test_after_a_rollback_what_waited_goes_on_with_the_old_row(both: Comparison) -> None:
    """A rolled-back change was never there."""
    take = (credit.TAKE, {"amount": 30, "account": "acct_a", "granted": 0})
    await both.run(0, take)
    assert await both.run(1, take) is WAITS
    assert (await both.end(0, commits=False))[1].rows == ((20,),)
    await both.finish()


async def test_a_constraint_is_checked_before_the_wait(both: Comparison) -> None:
    """A change that would break a constraint in the version that was read is refused at once."""
    await both.run(0, GRANT_A)
    refused = await both.run(1, (rows.MOVE, {"account": "acct_a", "paid": -40, "more": 0, "granted": 0}))
    assert refused is not None
    assert refused.refused == "ck_accounts_balance_covers_held"
    await both.finish()


async def test_rows_are_locked_in_order_and_stay_locked_during_the_wait(both: Comparison) -> None:
    """A statement that waits for its second row holds its first."""
    await both.run(0, (accounts.LOCK, {"account": "acct_b"}))
    ids = ["acct_c", "acct_b", "acct_a"]
    assert await both.run(1, (transaction.LOCK_ACCOUNTS.many, {"process": "proc_1", "ids": ids})) is WAITS
    assert await both.run(2, (accounts.LOCK, {"account": "acct_c"})) is not WAITS
    assert await both.run(2, (accounts.LOCK, {"account": "acct_a"})) is WAITS
    await both.give_up(2)
    await both.finish()


async def test_a_lock_timeout_frees_all_locks_of_its_transaction_at_once(both: Comparison) -> None:
    """Others go on before the ROLLBACK, without what the failed transaction changed."""
    take = (credit.TAKE, {"amount": 30, "account": "acct_b", "granted": 0})
    await both.run(0, (accounts.LOCK, {"account": "acct_a"}))
    await both.run(1, take)
    assert await both.run(1, (accounts.LOCK, {"account": "acct_a"})) is WAITS
    assert await both.run(2, take) is WAITS
    assert (await both.give_up(1))[2].rows == ((20,),)
    await both.finish()


async def test_a_refused_change_frees_all_locks_of_its_transaction_at_once(both: Comparison) -> None:
    """Others go on before the ROLLBACK, without what the failed transaction changed."""
    take = (credit.TAKE, {"amount": 30, "account": "acct_a", "granted": 0})
    await both.run(0, take)
    assert await both.run(1, take) is WAITS
    refused = await both.run(0, (rows.MOVE, {"account": "acct_b", "paid": -40, "more": 0, "granted": 0}))
    assert refused is not None
    assert refused.refused
    assert await both.waiting() == {}
    assert values_of(await both.run(1, (credit.FREE, {"account": "acct_a"}))) == ((0,),)
    await both.finish()


async def test_locked_accounts_can_be_skipped(both: Comparison) -> None:
    """SKIP LOCKED leaves out the rows that another transaction has locked."""
    await both.run(0, (accounts.LOCK, {"account": "acct_b"}))
    free = (transaction.LOCK_FREE_ACCOUNTS.many, {"process": "proc_3", "ids": ["acct_a", "acct_b", "acct_c"]})
    assert [row[0] for row in values_of(await both.run(1, free))] == ["acct_a", "acct_c"]
    await both.finish()


@pytest.mark.parametrize(
    ("holder", "waits"),
    [
        ((accounts.LOCK, {"account": "acct_b"}), False),
        ((credit.GRANT, {**GRANT_A[1], "account": "acct_b"}), False),
        ((accounts.LOCK_PASSWORD, {"account": "acct_b"}), True),
    ],
    ids=["no key update", "update", "for update"],
)
async def test_a_reference_waits_only_for_an_exclusive_lock(
    both: Comparison, holder: tuple[Statement, Values], waits: bool
) -> None:
    """A foreign key takes KEY SHARE on its parent: FOR UPDATE excludes it, and updates of other columns do not."""
    await both.run(0, holder)
    assert (await both.run(1, RESERVE_B) is WAITS) == waits
    await both.finish()


async def test_a_second_update_of_a_row_locks_its_parents(both: Comparison) -> None:
    """Postgres checks all references of a row that the same transaction has written before."""
    await both.run(0, (keys.TOUCH, {"key": "key_b", "used": 5}))
    assert await both.run(1, (accounts.LOCK_PASSWORD, {"account": "acct_b"})) is not WAITS
    assert await both.run(0, (keys.TOUCH, {"key": "key_b", "used": 6})) is WAITS
    await both.finish()


async def test_a_parent_is_deleted_only_without_children(both: Comparison) -> None:
    """A process with a reserve cannot be removed, nor while a transaction adds a reserve."""
    refused = await both.run(0, (presence.REMOVE, {"of": "proc_1"}))
    assert refused is not None
    assert refused.refused == "fk_reserves_process"
    await both.end(0, commits=False)
    await both.run(0, (presence.REGISTER, {"name": "proc_3", "version": "", "revision": "", "host": "", "pid": 1}))
    await both.end(0, commits=True)
    await both.run(0, (rows.ADD_RESERVE, {**RESERVE_B[1], "process": "proc_3"}))
    assert await both.run(1, (presence.REMOVE, {"of": "proc_3"})) is WAITS
    assert (await both.end(0, commits=True))[1].refused == "fk_reserves_process"
    await both.finish()


async def test_a_child_waits_for_the_deletion_of_its_parent(both: Comparison) -> None:
    """A reference to a row that is being deleted is refused if the deletion is committed."""
    await both.run(0, (presence.REGISTER, {"name": "proc_3", "version": "", "revision": "", "host": "", "pid": 1}))
    await both.end(0, commits=True)
    await both.run(0, (presence.REMOVE, {"of": "proc_3"}))
    assert await both.run(1, (rows.ADD_RESERVE, {**RESERVE_B[1], "process": "proc_3"})) is WAITS
    assert (await both.end(0, commits=True))[1].refused == "fk_reserves_process"
    await both.finish()


@pytest.mark.parametrize("commits", [True, False])
async def test_an_insert_waits_for_a_row_with_the_same_key(both: Comparison, commits: bool) -> None:
    """It is refused if the other one is committed, also by a partial index, and goes on otherwise."""
    await both.run(0, charge("chatcmpl-1"))
    assert await both.run(1, charge("chatcmpl-1")) is WAITS
    assert (await both.end(0, commits=commits))[1].refused == ("uq_entries_charge" if commits else "")
    await both.finish()


@pytest.mark.parametrize("commits", [True, False])
async def test_on_conflict_goes_its_way_after_the_wait(both: Comparison, commits: bool) -> None:
    """It updates or leaves out the row that was committed meanwhile, and inserts one otherwise."""
    reference = {"digest": DIGESTS[0], "action": "x", "arguments_digest": DIGESTS[0], "subject": "x", "at": 1}
    await both.run(0, (cap_rows.WRITE_HOLD, {"key": "key_a", "process": "proc_1", "amount": 5}))
    await both.run(0, (credit.ADD_REFERENCE, reference))
    assert await both.run(1, (cap_rows.WRITE_HOLD, {"key": "key_a", "process": "proc_1", "amount": 7})) is WAITS
    assert await both.run(2, (credit.ADD_REFERENCE, reference)) is WAITS
    went_on = await both.end(0, commits=commits)
    assert (went_on[1].count, went_on[2].count) == (1, 0 if commits else 1)
    await both.finish()


async def test_the_parts_of_a_batch_do_not_see_each_other(both: Comparison) -> None:
    """A reserve that one part changes is not dropped by another part, which looks for the new amount."""
    reserve: dict[str, list[Any]] = {"r_account": ["acct_a"], "r_before": [20], "r_after": [15], "r_spare": [False]}
    dropped: dict[str, list[Any]] = {"d_account": ["acct_a"], "d_before": [15]}
    assert values_of(await both.run(0, batch("proc_1", **reserve, **dropped))) == ((1, 1),)
    await both.finish()


async def test_a_fence_does_not_wait_for_a_batch_that_it_meets(both: Comparison) -> None:
    """FOR KEY SHARE and the update of a heartbeat do not exclude each other, and the removal waits for both."""
    assert values_of(await both.run(0, batch("proc_2"))) == ((0, 1),)
    fenced = await both.run(1, (presence.FENCE, {"of": "proc_2", "last": 0, "fenced": -1}))
    assert fenced is not None
    assert fenced.count == 1
    await both.end(1, commits=True)
    assert values_of(await both.run(0, batch("proc_2"))) == ((0, 0),)
    assert await both.run(1, (presence.REMOVE, {"of": "proc_2"})) is WAITS
    await both.finish()


async def test_a_batch_that_waited_does_not_see_that_its_process_was_fenced(both: Comparison) -> None:
    """FOR KEY SHARE returns the row as it was when the statement began, unless its key has changed."""
    reserve: dict[str, list[Any]] = {"r_account": ["acct_a"], "r_before": [10], "r_after": [5], "r_spare": [False]}
    await both.run(0, (credit.ASK, {"account": "acct_a", "me": "proc_1"}))
    assert await both.run(1, batch("proc_2", **reserve)) is WAITS
    await both.run(2, (presence.FENCE, {"of": "proc_2", "last": 0, "fenced": -1}))
    await both.end(2, commits=True)
    assert (await both.end(0, commits=True))[1].rows == ((1, 1),)
    assert values_of(await both.run(1, batch("proc_2"))) == ((0, 0),)
    await both.finish()


async def test_a_query_in_an_update_is_read_when_the_statement_begins(both: Comparison) -> None:
    """After a wait, whether there are caps is what it was before."""
    await both.run(0, (cap_rows.REMOVE, {"key": "key_a"}))
    await both.run(0, (accounts.LOCK, {"account": "acct_a"}))
    assert await both.run(1, (cap_rows.FLAG_ACCOUNT, {"account": "acct_a"})) is WAITS
    await both.end(0, commits=True)
    assert values_of(await both.run(1, LOCK_A)) == (("acct_a", 50, 20, 20, 0, 1, 0, 0, 0),)
    await both.finish()


async def test_a_mark_of_a_fenced_process_is_not_written(both: Comparison) -> None:
    """INSERT … SELECT reads the row of the process when the statement begins."""
    await both.run(0, (presence.FENCE, {"of": "proc_2", "last": 0, "fenced": -1}))
    before = await both.run(1, mark("proc_2"))
    assert before is not None
    assert before.count == 1
    await both.end(0, commits=True)
    after = await both.run(1, mark("proc_2"))
    assert after is not None
    assert after.count == 0
    await both.finish()


async def test_two_that_wait_for_each_other_are_a_deadlock(both: Comparison) -> None:
    """One of them is rolled back."""
    await both.run(0, LOCK_A)
    await both.run(1, (accounts.LOCK, {"account": "acct_b"}))
    assert await both.run(0, (accounts.LOCK, {"account": "acct_b"})) is WAITS
    with pytest.raises(DeadlockFound):
        await both.run(1, LOCK_A)
    await both.roll_back_all()


async def test_a_refused_transaction_holds_no_locks(both: Comparison) -> None:
    """What waits for it goes on before it is rolled back by its owner."""
    await both.run(0, LOCK_A)
    assert await both.run(1, LOCK_A) is WAITS
    await both.run(0, charge("chatcmpl-1"))
    refused = await both.run(0, (rows.MOVE, {"account": "acct_a", "paid": -1000, "more": 0, "granted": 0}))
    assert refused is not None
    assert refused.refused
    assert await both.waiting() == {}
    await both.finish()


async def test_those_who_wait_for_one_row_get_it_in_turn(both: Comparison) -> None:
    """The first that waited goes on first, and the second waits for it."""
    await both.run(0, LOCK_A)
    assert await both.run(1, GRANT_A) is WAITS
    assert await both.run(2, GRANT_A) is WAITS
    assert [*await both.end(0, commits=True)] == [1]
    assert (await both.end(1, commits=True))[2].rows == ((70, 20, 0, 10),)
    await both.finish()


async def test_ids_are_not_used_again(both: Comparison) -> None:
    """A sequence goes on after a rollback."""
    assert values_of(await both.run(0, charge("chatcmpl-1"))) == ((1,),)
    await both.end(0, commits=False)
    assert values_of(await both.run(0, charge("chatcmpl-1"))) == ((2,),)
    await both.finish()


@pytest.mark.parametrize("change", [REWRITE, ERASE], ids=["update", "delete"])
async def test_entries_are_append_only(both: Comparison, change: Statement) -> None:
    """The triggers refuse an update and a delete, even if there is no row."""
    with_values = dict.fromkeys(names_of(change), "x")
    refused = await both.run(0, (change, with_values))
    assert refused is not None
    assert refused.refused
    await both.finish()


async def test_random_histories_on_postgres(postgres: PostgresSide) -> None:
    """The model and Postgres return, refuse and wait alike in random histories."""
    for seed in range(POSTGRES_SEEDS):
        await replay(seed, ModelSide("postgres", SESSIONS), postgres, SESSIONS)
        await postgres.empty()


async def test_random_histories_on_sqlite(tmp_path: Path) -> None:
    """The model and SQLite return and refuse alike in random histories of one writer and its readers."""
    for seed in range(SQLITE_SEEDS):
        path = tmp_path / f"{seed}.db"
        copy_migrated_store(path)
        side = SqliteSide(path, SESSIONS)
        await replay(seed, ModelSide("sqlite", SESSIONS), side, SESSIONS)
        side.close()
        path.unlink()


async def test_sqlite_gives_ids_of_rolled_back_entries_again(lite: Comparison) -> None:
    """An id is one more than the highest."""
    for _ in range(2):
        await lite.run(0, charge("chatcmpl-1"))
        await lite.end(0, commits=False)
    await lite.run(0, charge("chatcmpl-1"))
    await lite.finish()


async def test_readers_of_sqlite_see_what_is_committed(lite: Comparison) -> None:
    """An open transaction is visible to itself alone."""
    read = (credit.FREE, {"account": "acct_a"})
    await lite.run(0, GRANT_A)
    assert values_of(await lite.run(0, read)) == ((40,),)
    assert values_of(await lite.run(1, read)) == ((30,),)
    await lite.end(1, commits=True)
    await lite.end(0, commits=True)
    assert values_of(await lite.run(1, read)) == ((40,),)
    await lite.finish()


async def test_sqlite_checks_references(lite: Comparison) -> None:
    """Foreign keys count in both directions."""
    for chosen in ((presence.REMOVE, {"of": "proc_1"}), (rows.ADD_RESERVE, {**RESERVE_B[1], "process": "unknown"})):
        refused = await lite.run(0, chosen)
        assert refused is not None
        assert refused.refused == "FOREIGN KEY"
        await lite.end(0, commits=False)
    await lite.finish()


def run_at_once(session: ModelSession, statement: Statement, values: Values) -> StatementResult:
    """Run a statement that must not wait."""
    running = session.run(statement, values)
    with pytest.raises(StopIteration) as done:
        next(running)
    result: StatementResult = done.value.value
    return result


def test_an_announcement_counts_at_the_commit() -> None:
    """A rolled-back transaction announces nothing."""
    database = ModelDatabase("postgres")
    first, second = database.begin(), database.begin()
    first.announce()
    first.roll_back()
    assert not second.commit()
    third = database.begin()
    third.announce()
    assert third.commit()


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_a_restored_database_has_lost_what_came_later(kind: Any) -> None:
    """Commits after `save` are undone, with their keys, and open transactions are rolled back."""
    database = ModelDatabase(kind)
    session = database.begin()
    for statement, values in first_rows():
        run_at_once(session, statement, values)
    session.commit()
    state, before = database.save(), [*database.table("reserves")]
    later = database.begin()
    run_at_once(later, *GRANT_A)
    run_at_once(later, rows.DROP_RESERVE, {"account": "acct_a", "of": "proc_1", "before": 20})
    run_at_once(later, *charge("chatcmpl-1"))
    run_at_once(later, keys.TOUCH, {"key": "key_a", "used": 5})
    later.commit()
    open_ = database.begin()
    run_at_once(open_, epochs.INCREMENT, {"of": "changes"})
    database.restore(state)
    assert open_.is_ended
    assert sorted(database.table("reserves"), key=repr) == sorted(before, key=repr)
    assert [*database.table("entries")] == []
    again = database.begin()
    assert run_at_once(again, *LOCK_A).rows == [("acct_a", 50, 20, 20, False, False, 0, 0, False)]
    assert run_at_once(again, *charge("chatcmpl-1")).count == 1
    again.commit()


def test_a_session_that_gives_up_holds_nothing() -> None:
    """The caller closes the statement that waits and rolls back; others then go on."""
    database = ModelDatabase("postgres")
    session = database.begin()
    for statement, values in first_rows():
        run_at_once(session, statement, values)
    session.commit()
    holder, waiter = database.begin(), database.begin()
    run_at_once(holder, accounts.LOCK, {"account": "acct_b"})
    running = waiter.run(transaction.LOCK_ACCOUNTS.many, {"process": "proc_1", "ids": ["acct_a", "acct_b"]})
    assert next(running) is holder
    running.close()
    waiter.roll_back()
    run_at_once(holder, *LOCK_A)
    holder.commit()


def test_errors_end_the_transaction_of_the_model() -> None:
    """After a refusal or a deadlock the session has ended."""
    database = ModelDatabase("postgres")
    session = database.begin()
    with pytest.raises(Refused, match="fk_reserves_account_id"):
        next(session.run(*RESERVE_B))
    assert session.is_ended
    first, second = database.begin(), database.begin()
    run_at_once(first, epochs.LOCK, {"of": "changes"})
    run_at_once(second, epochs.LOCK, {"of": "classes"})
    waiting = first.run(epochs.LOCK, {"of": "classes"})
    assert next(waiting) is second
    with pytest.raises(Deadlock):
        next(second.run(epochs.LOCK, {"of": "changes"}))
    assert second.is_ended
