"""What happens in a run, drawn from its seed: accounts, requests, commands and faults, as data that can be thinned out.

Every request and fault has its own numbers, so that the rest of a run stays as it is when one of them is left out.
"""

from random import Random
from typing import Literal, get_args

import msgspec

Database = Literal["postgres", "sqlite"]
Upstream = Literal["answers", "fails", "dies", "lies", "uncounted", "cached"]
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
    "theft",  # a stranger takes credit past the ledger: no seed has it, the tests of the simulation plant it
]
CommandKind = Literal["grant", "correct", "revoke", "cap"]
POSTGRES_ONLY = ("lost machine", "sleep", "freeze", "cut", "slow", "reset", "failover", "lost tail")
KINDS: tuple[FaultKind, ...] = tuple(kind for kind in get_args(FaultKind) if kind != "theft")
DATABASES: tuple[Database, ...] = ("postgres", "postgres", "sqlite")
BUSY_S = 20.0  # requests and faults begin in this time
BURSTS = 8  # in which most requests come, so that the ledger writes many at once
IN_BURST = 0.85
MONTH_END_MS = 1_793_491_200_000  # 2026-11-01 00:00 UTC
DOLLAR_NANO = 1_000_000_000


class PlannedAccount(msgspec.Struct, frozen=True):
    """An account, its opening credit, and the spend caps of its keys (None: no cap)."""

    name: str
    credit_nano: int
    caps_nano: tuple[int | None, ...]
    is_monthly: bool


class PlannedRequest(msgspec.Struct, frozen=True):
    """A chat of a client: to which process it goes first, how the upstream answers, and when the client leaves."""

    number: int
    at_s: float
    process: int
    account: int
    key: int
    prompt_chars: int
    max_tokens: int | None
    output_tokens: int
    is_stream: bool
    takes_s: float
    upstream: Upstream
    leaves_after_s: float | None
    idempotency: int | None  # requests with the same number share a key
    tries: int


class PlannedCommand(msgspec.Struct, frozen=True):
    """What an operator or owner does."""

    number: int
    at_s: float
    kind: CommandKind
    account: int
    key: int
    amount_nano: int
    repeats: int  # how often the same command is sent again, under the same reference


class PlannedFault(msgspec.Struct, frozen=True):
    """What goes wrong, where, from when on and for how long."""

    number: int
    at_s: float
    kind: FaultKind
    process: int
    lasts_s: float
    account: int
    commands_until: int | None = None  # instead of the time: when the process has sent this many commands to the store


class RunPlan(msgspec.Struct, frozen=True):
    """A whole run."""

    seed: int
    database: Database
    processes: int
    start_ms: int
    accounts: tuple[PlannedAccount, ...]
    requests: tuple[PlannedRequest, ...]
    commands: tuple[PlannedCommand, ...]
    faults: tuple[PlannedFault, ...]


def make_plan(seed: int, *, requests: int = 2_000, database: Database | None = None) -> RunPlan:
    random = Random(f"plan {seed}")
    kind: Database = random.choice(DATABASES) if database is None else database
    processes = random.choice((1, 2, 3, 3, 4)) if kind == "postgres" else random.choice((1, 2))
    accounts = tuple(_account(Random(f"account {seed} {number}"), number) for number in range(random.randint(2, 6)))
    faults = random.choice((0, 1, 1, 1, 2, 2, 2, 3, 4, 6))
    bursts = [(random.uniform(1.0, BUSY_S - 1), random.choice((0.02, 0.2, 0.5))) for _ in range(BURSTS)]
    return RunPlan(
        seed=seed,
        database=kind,
        processes=processes,
        start_ms=MONTH_END_MS - random.choice((5_000, 12_000, 3_600_000)),
        accounts=accounts,
        requests=tuple(_request(seed, number, processes, accounts, bursts) for number in range(requests)),
        commands=tuple(_command(seed, number, accounts) for number in range(random.randint(0, 12))),
        faults=tuple(_fault(seed, number, kind, processes, accounts) for number in range(faults)),
    )


def _account(random: Random, number: int) -> PlannedAccount:
    dollars = random.choice((0, 0.002, 0.02, 0.2, 10, 10, 10, 1000, 1000, 1000))
    caps = tuple(random.choice((None, None, None, 0, 1_500_000, 30_000_000)) for _ in range(random.randint(1, 3)))
    return PlannedAccount(f"acct_{number}", round(dollars * DOLLAR_NANO), caps, random.random() < 0.5)


def _request(
    seed: int,
    number: int,
    processes: int,
    accounts: tuple[PlannedAccount, ...],
    bursts: list[tuple[float, float]],
) -> PlannedRequest:
    random = Random(f"request {seed} {number}")
    account = random.randrange(len(accounts))
    is_long = random.random() < 0.15
    has_key = random.random() < 0.2
    return PlannedRequest(
        number=number,
        at_s=_arrival_s(random, bursts),
        process=random.randrange(processes),
        account=account,
        key=random.randrange(len(accounts[account].caps_nano)),
        prompt_chars=random.choice((40, 400, 4000, 12_000)),
        max_tokens=random.choice((None, 16, 200, 1000)),
        output_tokens=random.choice((1, 10, 100, 600, 3000)),
        is_stream=random.random() < 0.6,
        takes_s=random.uniform(0.5, 12.0) if is_long else random.uniform(0.005, 0.2),
        upstream=random.choice(("answers",) * 10 + ("fails", "dies", "lies", "uncounted", "cached", "cached")),
        leaves_after_s=_some_time(random) if random.random() < 0.15 else None,
        idempotency=random.randrange(40) if has_key else None,
        tries=random.choice((1, 2, 4)),
    )


def _arrival_s(random: Random, bursts: list[tuple[float, float]]) -> float:
    if random.random() > IN_BURST:
        return random.uniform(1.0, BUSY_S)
    begin_s, lasts_s = random.choice(bursts)
    return begin_s + lasts_s * random.random()


def _some_time(random: Random) -> float:
    return random.random() * random.choice((0.01, 0.1, 1.0, 5.0))


def _command(seed: int, number: int, accounts: tuple[PlannedAccount, ...]) -> PlannedCommand:
    random = Random(f"command {seed} {number}")
    account = random.randrange(len(accounts))
    return PlannedCommand(
        number=number,
        at_s=random.uniform(1.0, BUSY_S),
        kind=random.choice(("grant", "grant", "correct", "revoke", "cap")),
        account=account,
        key=random.randrange(len(accounts[account].caps_nano)),
        amount_nano=random.choice((1_000_000, 50_000_000, DOLLAR_NANO)),
        repeats=random.choice((0, 0, 1, 2)),
    )


def _fault(
    seed: int, number: int, database: Database, processes: int, accounts: tuple[PlannedAccount, ...]
) -> PlannedFault:
    random = Random(f"fault {seed} {number}")
    kinds = [kind for kind in KINDS if database == "postgres" or kind not in POSTGRES_ONLY]
    by_count = random.random() < 0.4
    return PlannedFault(
        number=number,
        at_s=random.uniform(0.5, BUSY_S),
        kind=random.choice(kinds),
        process=random.randrange(processes),
        lasts_s=random.choice((0.05, 0.5, 0.5, 2.0, 2.0, 4.0, 7.0, 9.0)) * random.uniform(0.7, 1.3),
        account=random.randrange(len(accounts)),
        commands_until=random.randrange(1, 2000) if by_count else None,
    )
