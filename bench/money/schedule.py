"""When things fail, in seconds since the load began. Every gateway gets the same schedule.

A gateway with fewer processes gets a fault at process N modulo their number. A gateway whose store is a file of its own
has no network to it, and is spared the partitions.
"""

from typing import Literal

import msgspec

Kind = Literal["kill", "kill all", "pause", "drop", "refuse"]
RESTART_S = 1.0  # how long a supervisor takes to start a killed process again


class Failure(msgspec.Struct, frozen=True):
    """kill: SIGKILL, and a start RESTART_S later. pause: SIGSTOP. drop, refuse: a partition from the store.

    A partition that drops keeps the connections and forwards nothing. One that refuses closes them and accepts none.
    """

    kind: Kind
    at_s: float
    process: int = 0
    lasts_s: float = RESTART_S

    @property
    def is_partition(self) -> bool:
        return self.kind in ("drop", "refuse")


class FaultPlan(msgspec.Struct, frozen=True):
    """One run. At each of `small_s` a fresh budget, for some 20 requests, is asked by many clients at once.

    At each of `revoked_s` a key is revoked that clients have used for REVOKED_USE_S, and go on using.
    """

    load_s: float
    failures: tuple[Failure, ...]
    small_s: tuple[float, ...]
    revoked_s: tuple[float, ...]


SMALL_USE_S = 5.0
REVOKED_USE_S = 4.0
REVOKED_AFTER_S = 8.0
FULL = FaultPlan(
    load_s=104.0,
    failures=(
        Failure("kill", 6.0, 0),
        Failure("pause", 16.0, 1, 3.0),
        Failure("drop", 24.0, 2, 4.0),
        Failure("pause", 33.0, 1, 10.0),
        Failure("refuse", 48.0, 2, 10.0),
        Failure("kill all", 62.0),
    ),
    small_s=(2.0, 11.0, 22.0, 31.0, 44.0, 60.0),
    revoked_s=(13.0, 36.0, 51.0),
)
QUICK = FaultPlan(
    load_s=30.0,
    failures=(
        Failure("kill", 4.0, 0),
        Failure("drop", 9.0, 1, 3.0),
        Failure("pause", 13.0, 1, 7.0),
        Failure("kill all", 22.0),
    ),
    small_s=(2.0, 10.0, 20.0),
    revoked_s=(9.0, 15.0),
)
