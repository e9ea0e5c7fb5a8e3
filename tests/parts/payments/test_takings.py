"""What was paid and what vouchers are worth, for the operator's overview."""

from cadenza.parts.payments.takings import get_takings
from cadenza.store.store import Store
from tests.store.rows import NOW_MS


async def test_a_new_store_has_no_takings(store: Store) -> None:
    """Without payments and vouchers there is no day, and nothing can be redeemed."""
    takings = await get_takings(store, NOW_MS)
    assert (takings.days, takings.vouchers.open_count) == ([], 0)
