"""How long the ledger waits, and how often it does its recurring work."""

import msgspec


class LedgerTiming(msgspec.Struct, frozen=True):
    """The timeouts and periods of the ledger's work, in seconds."""

    wait_s: float = 5.0  # how long a request waits for its hold, and then for its charge
    retry_s: float = 0.25  # the pause after the store did not take a batch
    mark_every_s: float = 0.5
    mark_after_s: float = 0.25  # shorter requests are not marked
    sweep_every_s: float = 2.0
    idle_s: float = 60.0  # a reserve that is unused for this long is given back
    release_every_s: float = 0.25
    reconcile_every_s: float = 15.0
    ask_s: float = 0.15  # how often a request that waits for credit of other processes asks again, unannounced
    ask_most_s: float = 1.0  # how long it waits before it is refused, while they have some to spare


USUAL_TIMING = LedgerTiming()
