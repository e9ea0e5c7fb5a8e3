"""Idempotency keys: one request per key and day, even at the same moment; a request that was not charged frees it."""

import asyncio

from cadenza.core.records import Usage
from cadenza.core.spans import DAY_MS
from cadenza.ledger import credit, idempotency_keys
from cadenza.ledger.rules import HeldCredit, Insufficient, Repeated
from cadenza.store.schema import idempotency
from cadenza.store.store import Store
from tests.store.aside import transaction
from tests.store.moves import (
    ON_POSTGRES,
    come_to_wait,
    finish,
    fund,
    make_hold,
    mark_all,
    money,
    register,
    sweep_process,
    take,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

KEY = b"k" * 32
OTHER_KEY = b"o" * 32
REPEATED = Repeated("r1", "req-r1")
FIRST = make_hold("r1", key=KEY)


async def keys_kept(store: Store) -> int:
    return len(await rows_of(store, idempotency))


async def test_a_key_is_used_while_its_request_runs_and_after(rich: Store) -> None:
    """The second request gets both ids of the first, holds nothing and pays nothing."""
    assert isinstance(await take(rich, FIRST), HeldCredit)
    held = await money(rich)
    assert await take(rich, make_hold("r2", key=KEY)) == REPEATED
    assert await money(rich) == held
    await finish(rich, FIRST, Usage(100, 7))
    assert await take(rich, make_hold("r3", key=KEY)) == REPEATED
    assert await money(rich) == (DOLLAR_NANO - 1210, 0)


async def test_a_used_key_is_found_before_a_hold(rich: Store) -> None:
    """As the hold would find it: while its request runs and after, for its account, for a day, unless it is freed."""
    freed = make_hold("r2", key=OTHER_KEY)
    for hold in (FIRST, freed):
        await take(rich, hold)

    async def found(account: str = "acct_a", key: bytes = KEY, after_ms: int = 0) -> Repeated | None:
        return await idempotency_keys.find_repeated(rich, account, key, NOW_MS + after_ms)

    assert [await found(), await found(key=OTHER_KEY)] == [REPEATED, Repeated("r2", "req-r2")]
    await finish(rich, FIRST, Usage(100, 7))
    await finish(rich, freed)
    assert [await found(), await found(after_ms=DAY_MS - 1)] == [REPEATED] * 2
    assert [await found(key=OTHER_KEY), await found("acct_b"), await found(after_ms=DAY_MS)] == [None] * 3


async def test_a_late_release_leaves_the_key_of_the_next_request(rich: Store) -> None:
    """A request that ends a day later does not free the key that another one has used since."""
    await take(rich, FIRST)
    await take(rich, make_hold("r2", key=KEY, started_at=NOW_MS + DAY_MS))
    await finish(rich, FIRST)
    later = make_hold("r3", key=KEY, started_at=NOW_MS + DAY_MS + 1)
    assert await take(rich, later) == Repeated("r2", "req-r2")


async def test_old_keys_are_forgotten(rich: Store) -> None:
    """A sweep removes what is more than a day old, and nothing younger."""
    await take(rich, FIRST)
    await take(rich, make_hold("r2", key=OTHER_KEY, started_at=NOW_MS + 1))
    await rich.transact(lambda tx: idempotency_keys.forget_old_keys(tx, NOW_MS + DAY_MS))
    assert await keys_kept(rich) == 2
    await rich.transact(lambda tx: idempotency_keys.forget_old_keys(tx, NOW_MS + DAY_MS + 1))
    assert await keys_kept(rich) == 1


async def test_a_dead_process_frees_the_keys_of_its_unfinished_requests(rich: Store) -> None:
    """The key of a request that was charged, before the death or by its mark, stays used; another one is free."""
    ended, unmarked = make_hold("r2", key=OTHER_KEY), make_hold("r3", key=b"u" * 32)
    for hold in (FIRST, ended, unmarked):
        await take(rich, hold)
    await finish(rich, ended, Usage(100, 7))
    await mark_all(rich, "r1")
    await sweep_process(rich)
    assert await take(rich, make_hold("r4", key=KEY)) == REPEATED
    assert await take(rich, make_hold("r5", key=OTHER_KEY)) == Repeated("r2", "req-r2")
    assert isinstance(await take(rich, make_hold("r6", key=b"u" * 32)), HeldCredit)


async def test_of_many_requests_at_one_moment_one_is_held(rich: Store) -> None:
    """Twenty processes at once with one key: one is held, and the others get its ids."""
    answers = await asyncio.gather(
        *(take(rich, make_hold(f"r{number}", key=KEY), f"proc_{number}") for number in range(20))
    )
    (held,) = [f"r{number}" for number, answer in enumerate(answers) if isinstance(answer, HeldCredit)]
    assert answers.count(Repeated(held, f"req-{held}")) == 19


@ON_POSTGRES
async def test_of_two_retries_at_one_moment_one_is_held(rich: Store, url: str) -> None:
    """Two requests that both find an expired key and replace it are not both held."""
    await take(rich, FIRST)
    for name in ("proc_2", "proc_3"):
        await register(rich, name)
    tomorrow = NOW_MS + DAY_MS
    async with transaction(url) as other:
        await other.rows("SELECT * FROM accounts FOR UPDATE")
        retries = [
            asyncio.create_task(take(rich, make_hold(f"r{number}", key=KEY, started_at=tomorrow), f"proc_{number}"))
            for number in (2, 3)
        ]
        assert await come_to_wait(rich, 2)
    answers = await asyncio.gather(*retries)
    assert sorted(type(answer).__name__ for answer in answers) == ["HeldCredit", "Repeated"]


async def test_keys_belong_to_their_account(rich: Store) -> None:
    """Another key of the account and the same key of another account are both new."""
    await fund(rich, DOLLAR_NANO, "b")
    wanted = [FIRST, make_hold("r2", key=OTHER_KEY), make_hold("r3", key=KEY, account="b")]
    assert [type(await take(rich, hold)) for hold in wanted] == [HeldCredit, HeldCredit, HeldCredit]


async def test_a_released_request_frees_its_key(rich: Store) -> None:
    """A request that was not charged may be retried with its key, which is then used again."""
    await take(rich, FIRST)
    await finish(rich, FIRST)
    assert isinstance(await take(rich, make_hold("r2", key=KEY)), HeldCredit)
    assert await take(rich, make_hold("r3", key=KEY)) == Repeated("r2", "req-r2")


async def test_a_request_that_was_charged_nothing_keeps_its_key(rich: Store) -> None:
    """A charge of zero is a charge: the reply was delivered."""
    await take(rich, FIRST)
    await finish(rich, FIRST, Usage(0, 0))
    assert await take(rich, make_hold("r2", key=KEY)) == REPEATED


async def test_a_key_is_good_again_after_a_day(rich: Store) -> None:
    """One millisecond before 24 hours the key is used, at 24 hours it is free, and then it is used for another day."""
    await take(rich, FIRST)
    await finish(rich, FIRST, Usage(100, 7))
    assert await take(rich, make_hold("r2", key=KEY, started_at=NOW_MS + DAY_MS - 1)) == REPEATED
    assert isinstance(await take(rich, make_hold("r3", key=KEY, started_at=NOW_MS + DAY_MS)), HeldCredit)
    assert await take(rich, make_hold("r4", key=KEY, started_at=NOW_MS + DAY_MS + 1)) == Repeated("r3", "req-r3")


async def test_insufficient_credit_leaves_no_key(store: Store) -> None:
    """A request that could not be paid may be retried with its key once there is credit."""
    await fund(store, 10)
    assert isinstance(await take(store, FIRST), Insufficient)
    assert await keys_kept(store) == 0
    await store.transact(lambda tx: credit.grant(tx, "acct_a", DOLLAR_NANO, "", NOW_MS))
    assert isinstance(await take(store, make_hold("r2", key=KEY)), HeldCredit)
