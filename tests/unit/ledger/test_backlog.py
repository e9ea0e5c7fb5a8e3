"""The queues of the ledger's writer: accounts take turns, and those that are set aside do so among themselves."""

import asyncio

from cadenza.ledger.backlog import Backlog, Move
from cadenza.store.store import StoreUnavailable
from tests.store.moves import make_hold


def add(backlog: Backlog, *accounts: str) -> list[Move]:
    """Let a hold of each account wait."""
    made = [Move(name, asyncio.get_running_loop().create_future(), hold=make_hold(name)) for name in accounts]
    for move in made:
        backlog.add(move)
    return made


def accounts_of(batch: list[Move]) -> str:
    return "".join(move.account_id for move in batch)


async def test_an_account_whose_moves_do_not_fit_goes_to_the_end_of_the_queue() -> None:
    """The others are next, also before what comes later for it."""
    backlog = Backlog()
    add(backlog, *"aaaaaab")
    taken = []
    for more in ("c", "a", ""):
        batch = backlog.take(3)
        add(backlog, *more)
        backlog.done(batch)
        taken.append(accounts_of(batch))
    assert (taken, len(backlog)) == (["aaa", "baa", "caa"], 0)


async def test_accounts_set_aside_take_turns() -> None:
    """Each is served alone in its turn, whatever the others do; probes reach all of them, too."""
    backlog = Backlog()
    add(backlog, *"abcabc")
    for name in "abc":
        backlog.set_aside(name)
    assert (backlog.take(10), len(backlog)) == ([], 0)
    alone, probed = "", ""
    for _ in range(6):
        batches = backlog.take_alone(10), backlog.take_probes(1)
        alone, probed = alone + accounts_of(batches[0][:1]), probed + accounts_of(batches[1])
        for batch in batches:
            backlog.requeue(batch)
            backlog.done(batch)
    assert alone == "abcabc"
    assert {*probed} == {*"abc"}
    backlog.rejoin("b")
    assert (accounts_of(backlog.take(10)), backlog.is_aside("b")) == ("bb", False)


async def test_moves_that_are_put_back_are_first_and_in_their_order() -> None:
    """Before what came for their account meanwhile."""
    backlog = Backlog()
    first = add(backlog, *"aa")
    batch = backlog.take(10)
    later = add(backlog, "a")
    backlog.requeue(batch)
    backlog.done(batch)
    assert backlog.take(10) == [*first, *later]


async def test_a_hold_that_nobody_waits_for_is_not_put_back() -> None:
    """Its caller was told that there is no answer."""
    backlog = Backlog()
    add(backlog, *"ab")
    batch = backlog.take(10)
    backlog.fail_holds(StoreUnavailable("no answer"))  # those that wait: none
    batch[0].answer.cancel()
    backlog.requeue(batch)
    backlog.done(batch)
    assert accounts_of(backlog.take(10)) == "b"


async def test_a_move_is_late_by_the_looks_at_it() -> None:
    """One look counts once, also for a move that was put back while its batch is not done."""
    backlog = Backlog()
    [move] = add(backlog, "a")
    batch = backlog.take(1)
    backlog.requeue(batch)
    assert [backlog.late(2) for _ in range(3)] == [[], [], [move]]
