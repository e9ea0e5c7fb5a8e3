"""What happens in a run, drawn from its seed: accounts, requests, commands and faults, as data that can be thinned out.

Every request and fault has its own numbers, so that the rest of a run stays as it is when one of them is left out. What
a run has more of is its theme (themes.py).
"""

from collections.abc import Iterator
from random import Random
from typing import get_args

import msgspec

from cadenza.core.rates import Rate
from tests.simulation.limits import PlannedLimits
from tests.simulation.oracle import TokenPrice
from tests.simulation.themes import (
    OF_VALKEY,
    THEMES,
    TRAITS,
    CommandKind,
    Database,
    FaultKind,
    Theme,
    ThemeTraits,
    Upstream,
)

POSTGRES_ONLY = ("lost machine", "sleep", "freeze", "cut", "slow", "reset", "failover", "lost tail")
OF_LINKS = ("cut", "slow", "reset")  # these may meet the operator's connections, too
KINDS: tuple[FaultKind, ...] = tuple(kind for kind in get_args(FaultKind) if kind not in {"theft", *OF_VALKEY})
BUSY_S = 20.0  # requests and faults begin in this time
BURSTS = 3  # of the requests of an account, so that the ledger writes many at once
MONTH_END_MS = 1_793_491_200_000  # 2026-11-01 00:00 UTC
DOLLAR_NANO = 1_000_000_000
FIRST_PRICE = TokenPrice(0, 251, 1_013, 23)  # odd, so that nothing is paid for without a rest
LATER_PRICES = ((251, 1_013, 31), (199, 1_511, 31), (307, 709, 0))  # the first one differs in cached tokens only
IDLE = "idle"  # an account that has just enough for the request that tries whether it is served
CHARS_PER_TOKEN = 4
PROBE_TOKENS = (10, 16)  # of its prompt, and the most of its answer
SHARERS = 4  # at most as many requests have the same idempotency key


class PlannedAccount(msgspec.Struct, frozen=True):
    """An account, its opening credit, and the spend caps (None: no cap) and ends of its keys (None: no end)."""

    name: str
    credit_nano: int
    caps_nano: tuple[int | None, ...]
    is_monthly: bool
    ends_ms: tuple[int | None, ...]  # after the start of the run
    is_granted: bool = True  # half of the credit


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
    is_at_once: bool = False  # the repetitions do not wait for each other


class PlannedFault(msgspec.Struct, frozen=True):
    """What goes wrong, where, from when on and for how long."""

    number: int
    at_s: float
    kind: FaultKind
    process: int  # as many as there are processes: the operator
    lasts_s: float
    account: int
    commands_until: int | None = None  # instead of the time: when the process has sent this many commands to the store


class RunPlan(msgspec.Struct, frozen=True):
    """A whole run."""

    seed: int
    theme: Theme
    database: Database
    processes: int
    start_ms: int
    accounts: tuple[PlannedAccount, ...]
    requests: tuple[PlannedRequest, ...]
    commands: tuple[PlannedCommand, ...]
    faults: tuple[PlannedFault, ...]
    limits: PlannedLimits | None = None
    prices: tuple[TokenPrice, ...] = (FIRST_PRICE,)


class PlanBase(msgspec.Struct, frozen=True):
    """What is drawn first, and everything else depends on."""

    seed: int
    traits: ThemeTraits
    database: Database
    processes: int
    accounts: tuple[PlannedAccount, ...]
    commands: int  # to the store that a process sends, about


def make_plan(
    seed: int, *, requests: int = 2_000, database: Database | None = None, theme: Theme | None = None
) -> RunPlan:
    random = Random(f"plan {seed}")
    chosen = random.choice(THEMES) if theme is None else theme
    traits = TRAITS[chosen]
    kind = random.choice(traits.databases) if database is None else database
    processes = random.choice(traits.processes)
    if kind == "sqlite":
        processes = min(processes, 2)
    count = random.randint(*traits.accounts)
    busy = tuple(_account(Random(f"account {seed} {number}"), number, traits) for number in range(count))
    base = PlanBase(seed, traits, kind, processes, busy, 200 + 2 * requests)
    start_ms = MONTH_END_MS - random.choice((5_000, 8_000, 12_000, 3_600_000))
    prices = (FIRST_PRICE, *_later_prices(Random(f"prices {seed}"), start_ms))
    return RunPlan(
        seed=seed,
        theme=chosen,
        database=kind,
        processes=processes,
        start_ms=start_ms,
        accounts=(
            *busy,
            PlannedAccount(IDLE, prices[-1].cost(*PROBE_TOKENS), (None,), False, (None,), is_granted=False),
        ),
        requests=tuple(_request(base, number) for number in range(requests)),
        commands=tuple(_command(base, number) for number in range(random.randint(*traits.commands))),
        faults=tuple(_fault(base, number) for number in range(random.choice(traits.faults))),
        limits=_limits(random) if traits.is_limited else None,
        prices=prices,
    )


def _later_prices(random: Random, start_ms: int) -> Iterator[TokenPrice]:
    """Prices that begin while requests run, in half of the runs."""
    at_s = 0.0
    for price in LATER_PRICES if random.random() < 0.5 else ():
        at_s += random.uniform(2.0, 7.0)
        yield TokenPrice(start_ms + round(at_s * 1000), *price)


def _limits(random: Random) -> PlannedLimits:
    rate = Rate(random.choice((5.0, 20.0, 100.0)), random.choice((8, 40, 200)))
    return PlannedLimits(rate, random.choice((32, 64, 256)))


def _account(random: Random, number: int, traits: ThemeTraits) -> PlannedAccount:
    credit_nano = round(random.choice(traits.dollars) * DOLLAR_NANO * random.uniform(0.9, 1.1))
    caps = tuple(random.choice(traits.caps_nano) for _ in range(random.randint(*traits.keys)))
    is_monthly = random.random() < 0.5
    ends = tuple(random.randrange(3_000, 18_000) if random.random() < traits.ending else None for _ in caps)
    return PlannedAccount(f"acct_{number}", credit_nano, caps, is_monthly, ends, is_granted=number % 3 != 2)


def _request(base: PlanBase, number: int) -> PlannedRequest:
    seed, traits, accounts = base.seed, base.traits, base.accounts
    random = Random(f"request {seed} {number}")
    account, at_s, idempotency = random.randrange(len(accounts)), random.uniform(1.0, BUSY_S), None
    if random.random() < traits.keyed:
        idempotency = number // SHARERS
        shared = Random(f"key {seed} {idempotency}")
        account = shared.randrange(len(accounts))
        at_s = min(BUSY_S, shared.uniform(1.0, BUSY_S) + random.choice((0, random.random(), random.uniform(2, 12))))
    elif random.random() < traits.bursts:
        burst = Random(f"burst {seed} {account} {random.randrange(BURSTS)}")
        at_s = burst.uniform(1.0, BUSY_S - 1) + burst.choice((0.02, 0.2, 0.5)) * random.random()
    max_tokens = random.choice(traits.max_tokens)
    return PlannedRequest(
        number=number,
        at_s=at_s,
        process=random.randrange(base.processes),
        account=account,
        key=random.randrange(len(accounts[account].caps_nano)),
        prompt_chars=round(random.choice(traits.prompts) * random.uniform(0.7, 1.3)),
        max_tokens=None if max_tokens is None else round(max_tokens * random.uniform(0.8, 1.2)),
        output_tokens=max(1, round(random.choice(traits.outputs) * random.uniform(0.5, 1.5))),
        is_stream=random.random() < traits.streams,
        takes_s=random.uniform(0.5, 12.0) if random.random() < traits.long else random.uniform(0.005, 0.2),
        upstream=random.choice(traits.upstreams),
        leaves_after_s=_some_time(random) if random.random() < traits.leaving else None,
        idempotency=idempotency,
        tries=random.choice((1, 2, 4)),
    )


def _some_time(random: Random) -> float:
    return random.random() * random.choice((0.01, 0.1, 1.0, 5.0))


def _command(base: PlanBase, number: int) -> PlannedCommand:
    random = Random(f"command {base.seed} {number}")
    account = random.randrange(len(base.accounts))
    return PlannedCommand(
        number=number,
        at_s=random.uniform(1.0, BUSY_S),
        kind=random.choice(base.traits.command_kinds),
        account=account,
        key=random.randrange(len(base.accounts[account].caps_nano)),
        amount_nano=random.choice((1_000_003, 5_000_011, 50_000_017, DOLLAR_NANO)),
        repeats=random.choice((0, 0, 1, 2)),
        is_at_once=random.random() < 0.5,
    )


def _fault(base: PlanBase, number: int) -> PlannedFault:
    traits, random = base.traits, Random(f"fault {base.seed} {number}")
    kinds = [kind for kind in traits.kinds or KINDS if base.database == "postgres" or kind not in POSTGRES_ONLY]
    kind = random.choice(kinds)
    return PlannedFault(
        number=number,
        at_s=random.uniform(0.5, BUSY_S),
        kind=kind,
        process=random.randrange(base.processes + (kind in OF_LINKS)),
        lasts_s=random.choice(traits.lasts_s) * random.uniform(0.95, 1.05),
        account=random.randrange(len(base.accounts)),
        commands_until=random.randrange(1, base.commands) if random.random() < traits.by_count else None,
    )
