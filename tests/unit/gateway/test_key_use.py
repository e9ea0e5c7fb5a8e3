"""When keys were last used: noted by requests, written to the store, and not lost while the store is down."""

from cadenza.gateway.written_later import KeyUse
from cadenza.store.schema import keys
from tests.unit.gateway.funded_store import KEY_ID, FundedStore, now_ms


async def last_used_ms(funded: FundedStore) -> int | None:
    [row] = await funded.rows(keys)
    found: int | None = row["last_used_at"]
    return found


async def test_the_last_use_is_written(funded: FundedStore) -> None:
    """The time is that of the last use."""
    key_use = KeyUse(funded.store, funded.observer.log)
    key_use.note(KEY_ID)
    before_ms = now_ms()
    key_use.note(KEY_ID)
    await key_use.write()
    used_ms = await last_used_ms(funded)
    assert used_ms
    assert before_ms <= used_ms <= now_ms()


async def test_a_use_survives_a_store_that_is_down(funded: FundedStore) -> None:
    """It is written with the next try, and the failure is logged."""
    key_use = KeyUse(funded.store, funded.observer.log)
    key_use.note(KEY_ID)
    funded.store.is_down = True
    await key_use.write()
    assert await last_used_ms(funded) is None
    funded.store.is_down = False
    await key_use.write()
    assert await last_used_ms(funded) is not None
    assert [line["level"] for line in funded.observer.log_lines] == ["warning"]
