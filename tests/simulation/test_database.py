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
WAITS, REFUSED = "waits", "refused"  # by a trigger: its words differ


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


FREE_A = (credit.FREE, {"account": "acct_a"})
TAKE_A = (credit.TAKE, {"amount": 30, "account": "acct_a", "granted": 0})
TAKE_B = (credit.TAKE, {"amount": 30, "account": "acct_b", "granted": 0})
LOCK = {name: (accounts.LOCK, {"account": f"acct_{name}"}) for name in "abc"}
LOCK_PASSWORD_B = (accounts.LOCK_PASSWORD, {"account": "acct_b"})
ALL_ACCOUNTS = {"process": "proc_3", "ids": ["acct_c", "acct_b", "acct_a"]}
FENCE = (presence.FENCE, {"of": "proc_2", "last": 0, "fenced": -1})
REMOVE = {number: (presence.REMOVE, {"of": f"proc_{number}"}) for number in (1, 2, 3)}
REGISTER_3 = (presence.REGISTER, {"name": "proc_3", "version": "", "revision": "", "host": "", "pid": 1})
RESERVE_3 = (rows.ADD_RESERVE, {**RESERVE_B[1], "process": "proc_3"})
REFERENCE = {"digest": DIGESTS[0], "action": "x", "arguments_digest": DIGESTS[0], "subject": "x", "at": 1}
ADD_REFERENCE = (credit.ADD_REFERENCE, REFERENCE)
MOVED: dict[str, list[Any]] = {"a_account": ["acct_a"], "a_paid": [-5], "a_more": [-5], "a_granted": [-5]}
FEWER_A: dict[str, list[Any]] = {"r_account": ["acct_a"], "r_before": [20], "r_after": [15], "r_spare": [False]}
FEWER_2: dict[str, list[Any]] = {"r_account": ["acct_a"], "r_before": [10], "r_after": [5], "r_spare": [False]}
COMMIT, ROLL_BACK, GIVE_UP, ALL_GO_ON = "commit", "roll back", "give up", "nobody waits"

Expected = str | int | tuple[Any, ...]  # it waits or is refused by a constraint, how many rows it changes, or its rows
Step = tuple[int, Any, Any]  # the session, what it runs, and what is expected; at an end, what others that waited get


def write_hold(amount_nano: int) -> tuple[Statement, Values]:
    return cap_rows.WRITE_HOLD, {"key": "key_a", "process": "proc_1", "amount": amount_nano}


def move(account: str, paid_nano: int) -> tuple[Statement, Values]:
    return rows.MOVE, {"account": account, "paid": paid_nano, "more": 0, "granted": 0}


HISTORIES: dict[str, list[Step]] = {
    "a statement sees what was committed when it began, and its own changes": [
        (0, GRANT_A, 1),
        (0, FREE_A, ((40,),)),
        (1, FREE_A, ((30,),)),
        (0, COMMIT, {}),
        (1, FREE_A, ((40,),)),
    ],
    "after a wait, the locked row is new and the joined row is old": [
        (0, LOCK_A, 1),
        (0, batch("proc_1", **MOVED, **FEWER_A), 1),
        (1, LOCK_A, WAITS),
        (0, COMMIT, {1: (("acct_a", 45, 15, 20, 0, 0, 0, -5, 0),)}),
        (1, LOCK_A, (("acct_a", 45, 15, 15, 0, 0, 0, -5, 0),)),
    ],
    "after a wait, the conditions are checked again": [(0, TAKE_A, 1), (1, TAKE_A, WAITS), (0, COMMIT, {1: 0})],
    "a rolled-back change was never there": [(0, TAKE_A, 1), (1, TAKE_A, WAITS), (0, ROLL_BACK, {1: ((20,),)})],
    "a constraint is checked before the wait": [
        (0, GRANT_A, 1),
        (1, move("acct_a", -40), "ck_accounts_balance_covers_held"),
    ],
    "rows are locked in order and stay locked during the wait": [
        (0, LOCK["b"], 1),
        (1, (transaction.LOCK_ACCOUNTS.many, ALL_ACCOUNTS), WAITS),
        (2, LOCK["c"], 1),
        (2, LOCK["a"], WAITS),
        (2, GIVE_UP, {}),
    ],
    "a lock timeout frees all locks of its transaction before its ROLLBACK": [
        (0, LOCK["a"], 1),
        (1, TAKE_B, 1),
        (1, LOCK["a"], WAITS),
        (2, TAKE_B, WAITS),
        (1, GIVE_UP, {2: ((20,),)}),
    ],
    "a refused change frees all locks of its transaction before its ROLLBACK": [
        (0, TAKE_A, 1),
        (1, TAKE_A, WAITS),
        (0, move("acct_b", -40), "ck_accounts_balance_covers_held"),
        (0, ALL_GO_ON, {}),
        (1, FREE_A, ((0,),)),
    ],
    "SKIP LOCKED leaves out the rows that another transaction has locked": [
        (0, LOCK["b"], 1),
        (1, (transaction.LOCK_FREE_ACCOUNTS.many, ALL_ACCOUNTS), 2),
    ],
    "a reference does not wait for FOR NO KEY UPDATE": [(0, LOCK["b"], 1), (1, RESERVE_B, 1)],
    "a reference does not wait for an update": [(0, TAKE_B, 1), (1, RESERVE_B, 1)],
    "a reference waits for FOR UPDATE": [(0, LOCK_PASSWORD_B, 1), (1, RESERVE_B, WAITS)],
    "a second update of a row in a transaction locks its parents": [
        (0, (keys.TOUCH, {"key": "key_b", "used": 5}), 1),
        (1, LOCK_PASSWORD_B, 1),
        (0, (keys.TOUCH, {"key": "key_b", "used": 6}), WAITS),
    ],
    "a parent with children is not deleted": [(0, REMOVE[1], "fk_reserves_process")],
    "a parent is not deleted while a transaction adds a child": [
        (0, REGISTER_3, 1),
        (0, COMMIT, {}),
        (0, RESERVE_3, 1),
        (1, REMOVE[3], WAITS),
        (0, COMMIT, {1: "fk_reserves_process"}),
    ],
    "a child waits for the deletion of its parent": [
        (0, REGISTER_3, 1),
        (0, COMMIT, {}),
        (0, REMOVE[3], 1),
        (1, RESERVE_3, WAITS),
        (0, COMMIT, {1: "fk_reserves_process"}),
    ],
    "an insert waits for a row with the same key, and is refused": [
        (0, charge("chatcmpl-1"), 1),
        (1, charge("chatcmpl-1"), WAITS),
        (0, COMMIT, {1: "uq_entries_charge"}),
    ],
    "an insert waits for a row with the same key, and goes on": [
        (0, charge("chatcmpl-1"), 1),
        (1, charge("chatcmpl-1"), WAITS),
        (0, ROLL_BACK, {1: 1}),
    ],
    "ON CONFLICT updates or leaves out the row that was committed meanwhile": [
        (0, write_hold(5), 1),
        (0, ADD_REFERENCE, 1),
        (1, write_hold(7), WAITS),
        (2, ADD_REFERENCE, WAITS),
        (0, COMMIT, {1: 1, 2: 0}),
    ],
    "ON CONFLICT inserts if the other row was rolled back": [
        (0, write_hold(5), 1),
        (0, ADD_REFERENCE, 1),
        (1, write_hold(7), WAITS),
        (2, ADD_REFERENCE, WAITS),
        (0, ROLL_BACK, {1: 1, 2: 1}),
    ],
    "the parts of a batch do not see each other": [
        (0, batch("proc_1", **FEWER_A, d_account=["acct_a"], d_before=[15]), ((1, 1),)),
    ],
    "a fence does not wait for a batch that it meets, and the removal waits for both": [
        (0, batch("proc_2"), ((0, 1),)),
        (1, FENCE, 1),
        (1, COMMIT, {}),
        (0, batch("proc_2"), ((0, 0),)),
        (1, REMOVE[2], WAITS),
    ],
    "a batch that waited does not see that its process was fenced": [
        (0, (credit.ASK, {"account": "acct_a", "me": "proc_1"}), 1),
        (1, batch("proc_2", **FEWER_2), WAITS),
        (2, FENCE, 1),
        (2, COMMIT, {}),
        (0, COMMIT, {1: ((1, 1),)}),
        (1, batch("proc_2"), ((0, 0),)),
    ],
    "a query in an update is read when the statement begins": [
        (0, (cap_rows.REMOVE, {"key": "key_a"}), 1),
        (0, LOCK["a"], 1),
        (1, (cap_rows.FLAG_ACCOUNT, {"account": "acct_a"}), WAITS),
        (0, COMMIT, {1: 1}),
        (1, LOCK_A, (("acct_a", 50, 20, 20, 0, 1, 0, 0, 0),)),
    ],
    "a mark of a fenced process is not written": [
        (0, FENCE, 1),
        (1, mark("proc_2"), 1),
        (0, COMMIT, {}),
        (1, mark("proc_2"), 0),
    ],
    "what waits for a refused transaction goes on": [
        (0, LOCK_A, 1),
        (1, LOCK_A, WAITS),
        (0, charge("chatcmpl-1"), 1),
        (0, move("acct_a", -1000), "ck_accounts_balance_covers_held"),
        (0, ALL_GO_ON, {}),
    ],
    "those who wait for one row get it in turn": [
        (0, LOCK_A, 1),
        (1, GRANT_A, WAITS),
        (2, GRANT_A, WAITS),
        (0, COMMIT, {1: ((60, 20, 0, 5),)}),
        (1, COMMIT, {2: ((70, 20, 0, 10),)}),
    ],
    "an id is not used again after a rollback": [
        (0, charge("chatcmpl-1"), ((1,),)),
        (0, ROLL_BACK, {}),
        (0, charge("chatcmpl-1"), ((2,),)),
    ],
    "entries are append-only, for an update": [(0, (REWRITE, dict.fromkeys(names_of(REWRITE), "x")), REFUSED)],
    "entries are append-only, for a delete": [(0, (ERASE, {}), REFUSED)],
}


async def play(comparison: Comparison, steps: list[Step]) -> None:
    """Run the steps on the model and on the real database, which are compared after each of them."""
    for number, what, expected in steps:
        if what == ALL_GO_ON:
            assert await comparison.waiting() == {}
        elif isinstance(what, str):
            if what == GIVE_UP:
                went_on = await comparison.give_up(number)
            else:
                went_on = await comparison.end(number, commits=what == COMMIT)
            assert went_on.keys() == expected.keys()
            for session, did in went_on.items():
                check(did, expected[session])
        else:
            check(await comparison.run(number, what), expected)
    await comparison.finish()


def check(did: Did | None, expected: Expected) -> None:
    if did is None or expected == WAITS:
        assert (did, expected) == (None, WAITS)
    elif isinstance(expected, str):
        assert did.refused
        assert expected in {REFUSED, did.refused}
    else:
        assert not did.refused
        assert (did.count if isinstance(expected, int) else did.rows) == expected


@pytest.mark.parametrize("claim", HISTORIES)
async def test_the_model_does_what_postgres_does(both: Comparison, claim: str) -> None:
    """In histories of what the ledger relies on: visibility, locks, waits, references and constraints."""
    await play(both, HISTORIES[claim])


async def test_two_that_wait_for_each_other_are_a_deadlock(both: Comparison) -> None:
    """One of them is rolled back."""
    await both.run(0, LOCK_A)
    await both.run(1, (accounts.LOCK, {"account": "acct_b"}))
    assert await both.run(0, (accounts.LOCK, {"account": "acct_b"})) is None
    with pytest.raises(DeadlockFound):
        await both.run(1, LOCK_A)
    await both.roll_back_all()


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


ON_SQLITE: dict[str, list[Step]] = {
    "an id is one more than the highest": [
        (0, charge("chatcmpl-1"), 1),
        (0, ROLL_BACK, {}),
        (0, charge("chatcmpl-1"), 1),
    ],
    "an open transaction is visible to itself alone": [
        (0, GRANT_A, 1),
        (0, FREE_A, ((40,),)),
        (1, FREE_A, ((30,),)),
        (1, COMMIT, {}),
        (0, COMMIT, {}),
        (1, FREE_A, ((40,),)),
    ],
    "a parent with children is not deleted": [(0, REMOVE[1], "FOREIGN KEY")],
    "a child needs a parent": [(0, (rows.ADD_RESERVE, {**RESERVE_B[1], "process": "unknown"}), "FOREIGN KEY")],
}


@pytest.mark.parametrize("claim", ON_SQLITE)
async def test_the_model_does_what_sqlite_does(lite: Comparison, claim: str) -> None:
    """In histories of one writer and its readers."""
    await play(lite, ON_SQLITE[claim])


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
