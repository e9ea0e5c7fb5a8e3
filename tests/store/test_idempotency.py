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
    findings,
    finish,
    fund,
    make_hold,
    money,
    register,
    sweep_process,
    take,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of, run_sql

KEY = b"k" * 32
OTHER_KEY = b"o" * 32
REPEATED = Repeated("r1", "req-r1")
FIRST = make_hold("r1", key=KEY)
MARK_R1 = """
    INSERT INTO marks SELECT completion_id, request_id, process, account_id, 'key_a', 'forte', 100, 7, 10, 30, 2,
    stream, 0, 3 FROM idempotency CROSS JOIN (SELECT TRUE AS stream) x WHERE completion_id = 'r1'"""


async def keys_kept(store: Store) -> int:
    return len(await rows_of(store, idempotency))


async def test_a_key_is_used_while_its_request_runs_and_after(store: Store) -> None:
    """The second request gets both ids of the first, holds nothing and pays nothing."""
    await fund(store, DOLLAR_NANO)
    assert isinstance(await take(store, FIRST), HeldCredit)
    held = await money(store)
    assert await take(store, make_hold("r2", key=KEY)) == REPEATED
    assert await money(store) == held
    await finish(store, FIRST, Usage(100, 7))
    assert await take(store, make_hold("r3", key=KEY)) == REPEATED
    assert await money(store) == (DOLLAR_NANO - 1210, 0)
    assert await findings(store) == []


async def test_a_used_key_is_found_before_a_hold(store: Store) -> None:
    """As the hold would find it: while its request runs and after, for its account, for a day, unless it is freed."""
    await fund(store, DOLLAR_NANO)
    freed = make_hold("r2", key=OTHER_KEY)
    for hold in (FIRST, freed):
        await take(store, hold)

    async def found(account: str = "acct_a", key: bytes = KEY, after_ms: int = 0) -> Repeated | None:
        return await idempotency_keys.find_repeated(store, account, key, NOW_MS + after_ms)

    assert [await found(), await found(key=OTHER_KEY)] == [REPEATED, Repeated("r2", "req-r2")]
    await finish(store, FIRST, Usage(100, 7))
    await finish(store, freed)
    assert [await found(), await found(after_ms=DAY_MS - 1)] == [REPEATED] * 2
    assert [await found(key=OTHER_KEY), await found("acct_b"), await found(after_ms=DAY_MS)] == [None] * 3


async def test_a_late_release_leaves_the_key_of_the_next_request(store: Store) -> None:
    """A request that ends a day later does not free the key that another one has used since."""
    await fund(store, DOLLAR_NANO)
    await take(store, FIRST)
    await take(store, make_hold("r2", key=KEY, started_at=NOW_MS + DAY_MS))
    await finish(store, FIRST)
    later = make_hold("r3", key=KEY, started_at=NOW_MS + DAY_MS + 1)
    assert await take(store, later) == Repeated("r2", "req-r2")


async def test_old_keys_are_forgotten(store: Store) -> None:
    """A sweep removes what is more than a day old, and nothing younger."""
    await fund(store, DOLLAR_NANO)
    await take(store, FIRST)
    await take(store, make_hold("r2", key=OTHER_KEY, started_at=NOW_MS + 1))
    await store.transact(lambda tx: idempotency_keys.forget_old_keys(tx, NOW_MS + DAY_MS))
    assert await keys_kept(store) == 2
    await store.transact(lambda tx: idempotency_keys.forget_old_keys(tx, NOW_MS + DAY_MS + 1))
    assert await keys_kept(store) == 1


async def test_a_dead_process_frees_the_keys_of_its_unfinished_requests(store: Store) -> None:
    """The key of a request that was charged, before the death or by its mark, stays used; another one is free."""
    await fund(store, DOLLAR_NANO)
    ended, unmarked = make_hold("r2", key=OTHER_KEY), make_hold("r3", key=b"u" * 32)
    for hold in (FIRST, ended, unmarked):
        await take(store, hold)
    await finish(store, ended, Usage(100, 7))
    await run_sql(store, MARK_R1)
    await sweep_process(store)
    assert await take(store, make_hold("r4", key=KEY)) == REPEATED
    assert await take(store, make_hold("r5", key=OTHER_KEY)) == Repeated("r2", "req-r2")
    assert isinstance(await take(store, make_hold("r6", key=b"u" * 32)), HeldCredit)
    assert await findings(store) == []


async def test_of_many_requests_at_one_moment_one_is_held(store: Store) -> None:
    """Twenty processes at once with one key: one is held, and the others get its ids."""
    await fund(store, DOLLAR_NANO)
    answers = await asyncio.gather(
        *(take(store, make_hold(f"r{number}", key=KEY), f"proc_{number}") for number in range(20))
    )
    (held,) = [f"r{number}" for number, answer in enumerate(answers) if isinstance(answer, HeldCredit)]
    assert answers.count(Repeated(held, f"req-{held}")) == 19


@ON_POSTGRES
async def test_of_two_retries_at_one_moment_one_is_held(store: Store, url: str) -> None:
    """Two requests that both find an expired key and replace it are not both held."""
    await fund(store, DOLLAR_NANO)
    await take(store, FIRST)
    for name in ("proc_2", "proc_3"):
        await register(store, name)
    tomorrow = NOW_MS + DAY_MS
    async with transaction(url) as other:
        await other.rows("SELECT * FROM accounts FOR UPDATE")
        retries = [
            asyncio.create_task(take(store, make_hold(f"r{number}", key=KEY, started_at=tomorrow), f"proc_{number}"))
            for number in (2, 3)
        ]
        assert await come_to_wait(store, 2)
    answers = await asyncio.gather(*retries)
    assert sorted(type(answer).__name__ for answer in answers) == ["HeldCredit", "Repeated"]


async def test_keys_belong_to_their_account(store: Store) -> None:
    """Another key of the account and the same key of another account are both new."""
    await fund(store, DOLLAR_NANO)
    await fund(store, DOLLAR_NANO, "b")
    wanted = [FIRST, make_hold("r2", key=OTHER_KEY), make_hold("r3", key=KEY, account="b")]
    assert [type(await take(store, hold)) for hold in wanted] == [HeldCredit, HeldCredit, HeldCredit]


async def test_a_released_request_frees_its_key(store: Store) -> None:
    """A request that was not charged may be retried with its key, which is then used again."""
    await fund(store, DOLLAR_NANO)
    await take(store, FIRST)
    await finish(store, FIRST)
    assert isinstance(await take(store, make_hold("r2", key=KEY)), HeldCredit)
    assert await take(store, make_hold("r3", key=KEY)) == Repeated("r2", "req-r2")


async def test_a_request_that_was_charged_nothing_keeps_its_key(store: Store) -> None:
    """A charge of zero is a charge: the reply was delivered."""
    await fund(store, DOLLAR_NANO)
    await take(store, FIRST)
    await finish(store, FIRST, Usage(0, 0))
    assert await take(store, make_hold("r2", key=KEY)) == REPEATED


async def test_a_key_is_good_again_after_a_day(store: Store) -> None:
    """One millisecond before 24 hours the key is used, at 24 hours it is free, and then it is used for another day."""
    await fund(store, DOLLAR_NANO)
    await take(store, FIRST)
    await finish(store, FIRST, Usage(100, 7))
    assert await take(store, make_hold("r2", key=KEY, started_at=NOW_MS + DAY_MS - 1)) == REPEATED
    assert isinstance(await take(store, make_hold("r3", key=KEY, started_at=NOW_MS + DAY_MS)), HeldCredit)
    assert await take(store, make_hold("r4", key=KEY, started_at=NOW_MS + DAY_MS + 1)) == Repeated("r3", "req-r3")


async def test_insufficient_credit_leaves_no_key(store: Store) -> None:
    """A request that could not be paid may be retried with its key once there is credit."""
    await fund(store, 10)
    assert isinstance(await take(store, FIRST), Insufficient)
    assert await keys_kept(store) == 0
    await store.transact(lambda tx: credit.grant(tx, "acct_a", DOLLAR_NANO, "", NOW_MS))
    assert isinstance(await take(store, make_hold("r2", key=KEY)), HeldCredit)
