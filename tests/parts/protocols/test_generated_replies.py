"""Replies made from seeds say the same in every protocol.

`python -m tests.parts.protocols.generated` checks 100,000.
"""

import pytest

from tests.parts.protocols.generated.checks import check_seed

SEEDS = 200
AT_ONCE = 25


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
async def test_a_reply_is_the_same_in_every_protocol(first: int) -> None:
    """Streams as the official SDKs put them together, and whole replies; each event has the published form."""
    for seed in range(first, first + AT_ONCE):
        try:
            await check_seed(seed)
        except Exception as error:
            error.add_note(f"seed {seed}: python -m tests.parts.protocols.generated --first {seed} --seeds 1")
            raise
