"""The time limits of the shared state in Valkey. Only tests have others."""

import msgspec


class Timing(msgspec.Struct, frozen=True):
    """All in seconds. A lease is renewed often enough that two renewals in a row may fail."""

    trip_s: float = 0.1  # how long a command may take
    connect_s: float = 1.0
    retry_s: float = 0.1  # from the end of a connection to the next attempt; twice as long after each that fails
    retry_s_max: float = 2.0
    stable_s: float = 10.0  # a connection that lasted so long was good: the next attempt is made soon
    settle_s: float = 4.0  # in which all processes connect again to a Valkey that has lost its memory
    lease_s: float = 3.0
    lease_margin_s: float = 0.25  # a process stops using its lease so long before Valkey gives it to others
    renew_s: float = 0.5
    unsettled_s: float = 0.02  # between reports of a process that has more slots than its part, or waits for its part
    gap_s: float = 0.005  # the least time between two reports
