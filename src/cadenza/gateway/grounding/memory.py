"""Stand-in."""

from cadenza.store.store import Store


async def recall(store: Store, account_id: str, question: str, tokens_max: int) -> list[str]:
    return []
