"""How long the ledger waits, and how often it does its recurring work."""

import msgspec


class LedgerTiming(msgspec.Struct, frozen=True):
    """The timeouts and periods of the ledger's work, in seconds."""

    wait_s: float = 5.0  # how long a request waits for its hold, and then for its charge
    retry_s: float = 0.25  # the pause after the store did not take a batch
    mark_every_s: float = 0.5
    mark_after_s: float = 0.25  # shorter requests are not marked
    sweep_every_s: float = 2.0
    release_every_s: float = 0.25
    reconcile_every_s: float = 15.0
    ask_s: float = 0.15  # how long a request waits for other processes to give back credit before it is refused
    ask_most_s: float = 1.0  # how long it waits in all, while they give back some


USUAL_TIMING = LedgerTiming()
