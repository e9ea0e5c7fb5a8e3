"""The themes of runs: what a run has more of, so that rare things meet.

A pause that ends just after its process was swept, a late end whose idempotency key is used again, a request that asks
for the last credit of an account: in a run that has a little of everything, two of these seldom come together.
"""

from typing import Literal, get_args

import msgspec

Theme = Literal[
    "mixed",  # a little of everything
    "swept",  # processes that are taken for dead and are alive
    "crashed",  # processes that die, and their streams and idempotency keys
    "poor",  # accounts with credit for a few requests, asked for by several processes at once
    "capped",  # keys with small caps, at a month's end
    "revoked",  # keys that are revoked while a process is cut off
    "owing",  # refunds, disputes, corrections, vouchers and grants while requests run
    "unsure",  # connections that break in the middle of transactions
    "locked",  # rows that a stranger has locked, some for long
    "limited",  # rates and slots in Valkey
]
Database = Literal["postgres", "sqlite"]
Upstream = Literal[
    "answers",
    "fails",  # before any content
    "dies",  # in mid-stream
    "lies",  # its counts cannot be true
    "uncounted",  # it reports no counts
    "cached",  # half of the prompt
    "counts more",  # twice as many tokens of the prompt as we do
]
FaultKind = Literal[
    "crash",  # kill -9; its machine closes the connections
    "lost machine",  # its connections stay open until nobody acknowledges them
    "stop",  # SIGSTOP: the clocks run on
    "sleep",  # the machine sleeps: the monotonic clock stands still
    "freeze",  # the virtual machine is paused: all of its clocks stand still
    "cut",  # no packets between the process and the store
    "slow",  # the same, a hundred times slower
    "reset",  # all connections to the store break at once
    "lock",  # a stranger locks an account
    "full",  # the disk of the store is full
    "failover",  # the store is down for a moment, and nothing is lost
    "lost tail",  # the same, and the last commits are gone
    "clock",  # the time of day of a process is set
    "drain",  # it is stopped properly, and started again
    "cut valkey",  # no packets between the process and Valkey
    "slow valkey",  # the same, a hundred times slower
    "restart valkey",  # it is down, and comes back empty
    "theft",  # a stranger takes credit past the ledger: no seed has it, the tests of the simulation plant it
]
OF_VALKEY: tuple[FaultKind, ...] = ("cut valkey", "slow valkey", "restart valkey")
CommandKind = Literal[
    "grant",
    "correct",
    "revoke",
    "suspend",  # the account
    "cap",
    "voucher",
    "refund",  # of a payment
    "dispute",
    "repay",  # a request is refunded, whole or in part
    "promote",  # a grant that expires within seconds
]
THEMES: tuple[Theme, ...] = get_args(Theme)
SPANS_S = (0.05, 0.5, 0.5, 1.9, 2.1, 2.6, 4.0, 4.9, 5.2, 5.9, 6.3, 6.8, 7.5, 8.5)  # about the times of the presence
SWEPT_S = (5.9, 6.4, 7.0, 7.5, 8.0, 8.3, 8.6, 9.0, 9.5, 10.5)
SHORT_S = (1.5, 1.9, 2.1, 2.4, 2.6, 3.0, 4.0, 5.0)
RICH = (1_000,)
ANSWERS: tuple[Upstream, ...] = ("answers",) * 10
UPSTREAMS: tuple[Upstream, ...] = (*ANSWERS, "fails", "dies", "lies", "uncounted", "cached", "cached", "counts more")
SMALL_NANO = 10 * 251 + 16 * 1_013  # what is held for the smallest request
CAPS = (None, None, None, 0, 1_500_013, 30_000_007)


class ThemeTraits(msgspec.Struct, frozen=True):
    """What a theme draws from. Kinds of faults that a database does not have are left out."""

    databases: tuple[Database, ...] = ("postgres", "postgres", "sqlite")
    processes: tuple[int, ...] = (1, 2, 3, 3, 4)
    accounts: tuple[int, int] = (2, 6)
    dollars: tuple[float, ...] = (0, 0.002, 0.02, 0.2, 10, 10, 10, 1_000, 1_000, 1_000)
    keys: tuple[int, int] = (1, 3)
    caps_nano: tuple[int | None, ...] = CAPS
    faults: tuple[int, ...] = (0, 1, 1, 1, 2, 2, 2, 3, 4, 6)
    kinds: tuple[FaultKind, ...] = ()  # of the faults; none: all
    lasts_s: tuple[float, ...] = SPANS_S
    by_count: float = 0.4  # how many faults come at a command to the store instead of at a time
    commands: tuple[int, int] = (0, 12)
    command_kinds: tuple[CommandKind, ...] = (
        "grant",
        "grant",
        "correct",
        "revoke",
        "cap",
        "voucher",
        "refund",
        "dispute",
        "repay",
        "promote",
        "suspend",
    )
    prompts: tuple[int, ...] = (40, 400, 4_000, 11_000)
    max_tokens: tuple[int | None, ...] = (None, 16, 200, 1_000)
    outputs: tuple[int, ...] = (1, 10, 100, 600, 3_000)
    streams: float = 0.6
    long: float = 0.15  # how many requests take seconds
    keyed: float = 0.2  # how many have an idempotency key
    leaving: float = 0.15
    ending: float = 0.1  # how many API keys expire
    bursts: float = 0.4  # how many come within half a second of others of their account
    upstreams: tuple[Upstream, ...] = UPSTREAMS
    is_limited: bool = False  # rates and slots are shared in Valkey


TRAITS: dict[Theme, ThemeTraits] = {
    "mixed": ThemeTraits(bursts=0.85),
    "swept": ThemeTraits(
        databases=("postgres",),
        processes=(2, 3, 3, 4),
        accounts=(2, 4),
        dollars=(0.01, 0.05, 1_000, 1_000),
        faults=(2, 3, 3, 4),
        kinds=("stop", "stop", "sleep", "freeze", "cut", "cut", "lost machine"),
        lasts_s=SWEPT_S,
        by_count=0.25,
        commands=(1, 6),
        command_kinds=("grant", "cap", "revoke", "suspend", "correct", "repay", "repay"),
        caps_nano=(None, None, None, 1_500_013, 30_000_007),
        prompts=(40, 4_000, 11_000),
        outputs=(10, 100, 600),
        streams=0.7,
        long=0.6,
        keyed=0.4,
        upstreams=("answers", "answers", "cached", "cached", "cached", "dies", "uncounted"),
    ),
    "crashed": ThemeTraits(
        processes=(1, 2, 3, 4),
        dollars=(0.02, 0.2, 1_000, 1_000),
        faults=(1, 2, 3, 4),
        kinds=("crash", "crash", "lost machine", "reset", "full", "failover", "drain", "clock", "cut"),
        long=0.4,
        keyed=0.4,
        by_count=0.6,
        commands=(0, 6),
    ),
    "poor": ThemeTraits(
        processes=(2, 3, 4),
        accounts=(3, 6),
        dollars=(0.0012, 0.003, 0.006, 0.006, 0.012, 0.03),
        caps_nano=(None, None, None, None, 3_000_017),
        faults=(0, 0, 0, 1),
        kinds=("stop", "reset", "crash"),
        commands=(2, 10),
        command_kinds=("grant", "grant", "correct", "voucher", "repay", "promote"),
        prompts=(40, 40, 40, 12_000),
        max_tokens=(16, 16, 16, 1_000, 3_000),
        outputs=(1, 10, 600),
        upstreams=("answers", "answers", "answers", "answers", "counts more", "counts more", "cached", "fails"),
        long=0.1,
        bursts=0.7,
    ),
    "capped": ThemeTraits(
        processes=(1, 2, 3),
        accounts=(2, 3),
        dollars=(0.02, 10, 1_000),
        caps_nano=(None, SMALL_NANO, SMALL_NANO - 1, 400_009, 1_500_013, 4_000_037, 30_000_007),
        faults=(0, 1, 1, 2, 3),
        kinds=("reset", "reset", "cut", "crash", "stop", "clock", "freeze", "failover"),
        commands=(2, 6),
        command_kinds=("cap", "cap", "cap", "grant"),
        prompts=(40, 400, 4_000),
        max_tokens=(16, 16, 200, 1_000),
        long=0.25,
        by_count=0.6,
    ),
    "revoked": ThemeTraits(
        databases=("postgres", "postgres", "postgres", "sqlite"),
        processes=(2, 3, 4),
        dollars=RICH,
        keys=(3, 3),
        caps_nano=(None,),
        faults=(1, 2, 3, 4),
        kinds=("stop", "stop", "cut", "cut", "slow", "sleep", "freeze", "reset", "failover"),
        lasts_s=SHORT_S,
        commands=(6, 12),
        command_kinds=("revoke", "revoke", "revoke", "suspend", "grant"),
        prompts=(40, 400),
        long=0.05,
    ),
    "owing": ThemeTraits(
        accounts=(1, 3),
        dollars=(0.01, 0.05, 0.2, 2),
        faults=(0, 0, 1, 2),
        kinds=("reset", "reset", "failover", "crash", "stop", "full", "cut"),
        commands=(8, 20),
        command_kinds=(
            *("grant", "correct", "correct", "voucher", "voucher", "refund", "refund", "dispute", "dispute"),
            *("repay", "repay", "promote", "promote"),
        ),
        long=0.4,
    ),
    "unsure": ThemeTraits(
        databases=("postgres",),
        processes=(1, 2, 3),
        dollars=(0.05, 10, 1_000),
        caps_nano=(None, None, 1_500_013, 30_000_007),
        faults=(4, 6, 8),
        kinds=("reset", "reset", "reset", "cut", "failover"),
        lasts_s=(0.05, 0.5, 2.0),
        by_count=0.9,
        commands=(2, 6),
        keyed=0.3,
    ),
    "locked": ThemeTraits(
        databases=("postgres",),
        processes=(1, 2, 3),
        accounts=(4, 6),
        dollars=(10, 1_000),
        faults=(2, 3, 4, 5),
        kinds=("lock", "lock", "lock", "lock", "crash"),
        lasts_s=(0.2, 0.5, 1.0, 3.0, 8.0, 13.0),
        by_count=0.2,
        commands=(0, 3),
        command_kinds=("grant", "correct"),
        long=0.3,
    ),
    "limited": ThemeTraits(
        databases=("postgres",),
        processes=(1, 2, 3, 4),
        accounts=(2, 4),
        dollars=RICH,
        caps_nano=(None,),
        faults=(0, 1, 1, 2, 3),
        kinds=(*OF_VALKEY, *OF_VALKEY, "stop", "sleep", "freeze", "crash", "lost machine", "drain", "cut"),
        commands=(0, 2),
        command_kinds=("grant", "revoke"),
        prompts=(40, 400),
        bursts=0.8,
        is_limited=True,
    ),
}
