"""The sequential test of a canary, and when it steps up or rolls back. Pure: no I/O and no clock.

Five measures are compared: errors, first token, finish reasons, longer and shorter answers. Each is a bet against "the
candidate is not worse". A block has n_a observations of the candidate and n_b of the incumbent. The bet pays
likelihood(theta_a, theta_b) / likelihood(theta), where theta is the rate of both together and theta_a > theta_b. Its
expected value is at most 1 for every common rate, and if the candidate's rate is lower. So by Ville's inequality the
capital ever reaches ALARM with probability 1 / ALARM at most, however often one looks, and all measures of a whole
canary together raise a false alarm with probability FALSE_ALARM at most, if requests are independent.

Times and lengths are counted in bins that grow by a tenth, and compared with the quartile of earlier blocks. The
candidate has a tolerance: its event is "more than 1.5 times the quartile", the incumbent's is "more than the quartile".

A client can steer its own results, with `max_tokens` for example. Therefore accounts are in GROUPS groups by hash, and
the same bets are made again without each group. An alarm needs a capital of ALARM, and one of DOUBT without any one
group. So one account alone turns a harmless canary back with probability len(MEASURES) / DOUBT, or 10%, at most.
"""

from math import exp, log

import msgspec

from cadenza.core.classes import SHARES

FALSE_ALARM = 0.01  # the most probable it may be that a canary without any difference is rolled back
MEASURES = ("errors", "first token", "finish reasons", "longer answers", "shorter answers")
ALARM = len(MEASURES) / FALSE_ALARM  # the capital of one measure at which it raises the alarm
DOUBT = ALARM / 10  # with more than this, a canary does not step up
ODDS = (2.0, 6.0, 30.0, 200.0)  # the alternatives: how many times the odds of the incumbent
KEPT_REQUESTS = 50  # half of the capital is bet at once, and half of the rest after this many requests
LOG_MOST = 60.0  # of the payment for one block, so that no number overflows

TOLERANCE = 1.5
BINS_PER_TOLERANCE = 4  # so that a bin is 1.107 times as large as the one before
QUARTILE_OBSERVATIONS = 20  # of the incumbent, before its quartile is used
BINS_PER_LOG = BINS_PER_TOLERANCE / log(TOLERANCE)
BIN_MAX = 160
INCUMBENTS_PER_CANDIDATE = 2  # in a block
CANDIDATES_MOST = 5  # in a block that waits for observations of the incumbent
ACCOUNT_BITS = 64
GROUPS = 8  # of accounts, so that no account decides alone
HOUR_MS = 3_600_000

Bins = dict[int, int]


class SideCounts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Observations of one side that belong to one block."""

    requests: int = 0
    errors: int = 0
    answers: int = 0
    cut: int = 0  # answers whose finish reason is `length` or `content_filter`
    first_token: Bins = msgspec.field(default_factory=dict)  # by bin of milliseconds
    length: Bins = msgspec.field(default_factory=dict)  # by bin of tokens

    def add(self, other: "SideCounts") -> None:
        if not other.requests:
            return
        self.requests += other.requests
        self.errors += other.errors
        self.answers += other.answers
        self.cut += other.cut
        add_bins(self.first_token, other.first_token)
        add_bins(self.length, other.length)


class Block(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Observations of both sides, and a bit for each account that the candidate served."""

    candidate: SideCounts = msgspec.field(default_factory=SideCounts)
    incumbent: SideCounts = msgspec.field(default_factory=SideCounts)
    accounts: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.candidate.requests or self.incumbent.requests)

    @property
    def is_whole(self) -> bool:
        """Whether it has enough of both sides to be compared. This depends on the numbers of requests alone."""
        ours, theirs = self.candidate.requests, self.incumbent.requests
        return bool(ours and theirs) and (theirs >= INCUMBENTS_PER_CANDIDATE * ours or ours >= CANDIDATES_MOST)

    def add(self, other: "Block") -> None:
        self.candidate.add(other.candidate)
        self.incumbent.add(other.incumbent)
        self.accounts |= other.accounts


class Counts(msgspec.Struct, frozen=True):
    """Events among the observations of the candidate (a) and of the incumbent (b)."""

    n_a: int
    k_a: int
    n_b: int
    k_b: int


class Bet(msgspec.Struct, kw_only=True):
    """The test of one measure: what was observed, the capital that is not bet yet, and that of each alternative."""

    n_a: int = 0
    k_a: int = 0
    n_b: int = 0
    k_b: int = 0
    kept: float = 1.0
    staked: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(ODDS))

    @property
    def capital(self) -> float:
        return self.kept + sum(self.staked)

    def take(self, seen: Counts) -> None:
        """Bet on a block, at odds that follow from earlier blocks only."""
        kept = KEPT_REQUESTS / (KEPT_REQUESTS + self.n_a) / 2
        stake, self.kept = (self.kept - kept) / len(ODDS), kept
        rate = (self.k_b + 0.5) / (self.n_b + 1)
        self.staked = [
            (before + stake) * e_value(seen, shifted(rate, odds), rate)
            for before, odds in zip(self.staked, ODDS, strict=True)
        ]
        self.n_a += seen.n_a
        self.k_a += seen.k_a
        self.n_b += seen.n_b
        self.k_b += seen.k_b


class CanaryState(msgspec.Struct, kw_only=True):
    """Everything that a canary knows, as it is stored: counts, capital and bins.

    It has 20 to 30 KiB after some thousand requests, and less than 144 KiB in any case.
    """

    step_requests: int = 0  # of the candidate, since the step began
    step_incumbents: int = 0
    step_accounts: int = 0  # one bit each, by hash
    open: Block = msgspec.field(default_factory=Block)
    past_first_token: Bins = msgspec.field(default_factory=dict)  # of the incumbent, of earlier blocks
    past_length: Bins = msgspec.field(default_factory=dict)
    bets: dict[str, Bet] = msgspec.field(default_factory=lambda: {measure: Bet() for measure in MEASURES})
    without: list["CanaryState"] = msgspec.field(default_factory=list)  # the same without each group of accounts

    @property
    def account_count(self) -> int:
        """How many accounts the candidate served in this step, at least."""
        return self.step_accounts.bit_count()

    def add(self, *blocks: Block) -> None:
        """Take observations. They are compared as soon as there are enough of both sides."""
        for block in blocks:
            self.step_requests += block.candidate.requests
            self.step_incumbents += block.incumbent.requests
            self.step_accounts |= block.accounts
            self.open.add(block)
        if self.open.is_whole:
            self._compare(self.open)
            self.open = Block()

    def add_groups(self, groups: list[Block]) -> None:
        """Take observations by group of accounts."""
        self.add(*groups)
        for number, view in enumerate(self.without):
            view.add(*groups[:number], *groups[number + 1 :])

    def capital(self, measure: str) -> float:
        """The evidence for a measure that does not depend on one group of accounts.

        Errors are those of an upstream: if all are of one group, and the candidate served no other, they count.
        """
        views = (view.bets[measure] for view in self.without)
        others = [bet.capital for bet in views if bet.n_a or measure != "errors"]
        return min([self.bets[measure].capital, *others])

    def begin_step(self) -> None:
        self.step_requests = self.step_incumbents = self.step_accounts = 0
        self.open = Block()
        for view in self.without:
            view.begin_step()

    def _compare(self, block: Block) -> None:
        for measure, bet in self.bets.items():
            if seen := self._count(measure, block.candidate, block.incumbent):
                bet.take(seen)
        add_bins(self.past_first_token, block.incumbent.first_token)
        add_bins(self.past_length, block.incumbent.length)

    def _count(self, measure: str, ours: SideCounts, theirs: SideCounts) -> Counts | None:
        """The events of a measure in a block. None: there is no quartile yet to compare with."""
        match measure:
            case "errors":
                return Counts(ours.requests, ours.errors, theirs.requests, theirs.errors)
            case "finish reasons":
                return Counts(ours.answers, ours.cut, theirs.answers, theirs.cut)
            case "first token":
                return count_beyond(ours.first_token, theirs.first_token, upper_quartile(self.past_first_token), 1)
            case "longer answers":
                return count_beyond(ours.length, theirs.length, upper_quartile(self.past_length), 1)
            case _:
                return count_beyond(ours.length, theirs.length, lower_quartile(self.past_length), -1)


class StepRules(msgspec.Struct, frozen=True, kw_only=True):
    """When a canary goes on to the next share.

    Enough requests of enough accounts, and enough of the incumbent to compare them with, for a minimum time. A small
    service waits `wait_ms` at most: then the first step goes on in any case, since a larger share is how it gets more
    requests, and the last one with `requests_least` of `accounts_least`.
    """

    requests: int = 250
    accounts: int = 5
    incumbents: int = 50
    least_ms: int = 600_000
    wait_ms: int = 24 * HOUR_MS
    requests_least: int = 20
    accounts_least: int = 2


class NextStep(msgspec.Struct, frozen=True):
    """What happens to the canary, and why: the candidate's next share, 100 if it becomes the version, 0 if not."""

    share: int
    reason: str
    measure: str = ""  # that raised the alarm


def decide(state: CanaryState, share: int, waited_ms: int, rules: StepRules) -> NextStep | None:
    """What follows from the stored state, `waited_ms` after its step began. None: go on as it is."""
    if alarm := alarm_of(state):
        return NextStep(0, describe(state, alarm), alarm)
    steps = [step for step in SHARES if step > share]
    has_enough = (
        state.step_requests >= rules.requests
        and state.account_count >= rules.accounts
        and state.step_incumbents >= rules.incumbents
        and waited_ms >= rules.least_ms
    )
    has_some = (
        min(state.step_requests, state.step_incumbents) >= rules.requests_least
        and state.account_count >= rules.accounts_least
    )
    has_waited = waited_ms >= rules.wait_ms and (len(steps) > 1 or has_some)
    if doubts_of(state) or not (has_enough or has_waited):
        return None
    return NextStep(
        steps[0],
        f"{state.step_requests} requests of {state.account_count} or more accounts at {share}%, "
        f"{state.step_incumbents} requests of the version before, no alarm",
    )


def describe(state: CanaryState, measure: str) -> str:
    """The numbers of a measure in one sentence."""
    bet = state.bets[measure]
    ours, theirs = f"{bet.k_a} of {bet.n_a} of the candidate", f"{bet.k_b} of {bet.n_b} of the version before"
    match measure:
        case "errors":
            return f"errors: {ours}, {theirs}"
        case "finish reasons":
            return f"finish reasons: length or content_filter for {ours}, {theirs}"
    bins = state.past_first_token if measure == "first token" else state.past_length
    if measure == "shorter answers":
        limit, factor, word = lower_quartile(bins), 1 / TOLERANCE, "below"
    else:
        limit, factor, word = upper_quartile(bins), TOLERANCE, "above"
    usual = value_of(limit - (word == "below")) if limit is not None else 0
    unit = "ms" if measure == "first token" else "tokens"
    return f"{measure}: {word} {usual * factor:.0f} {unit} for {ours}, {word} {usual:.0f} {unit} for {theirs}"


def new_canary() -> str:
    """The state of a canary that begins, as it is stored."""
    return encode(CanaryState(without=[CanaryState() for _ in range(GROUPS)]))


def encode(state: CanaryState) -> str:
    return msgspec.json.encode(state).decode()


def decode(stored: str | None) -> CanaryState:
    return msgspec.json.decode(stored or "{}", type=CanaryState)


def alarm_of(state: CanaryState) -> str | None:
    """The measure that raised the alarm."""
    worst = max(doubts_of(state), key=lambda measure: state.bets[measure].capital, default=None)
    return worst if worst and state.bets[worst].capital >= ALARM else None


def doubts_of(state: CanaryState) -> list[str]:
    """The measures with so much evidence, without any one group too, that the canary must not step up."""
    return [measure for measure, bet in state.bets.items() if bet.capital >= DOUBT and state.capital(measure) >= DOUBT]


def e_value(seen: Counts, theta_a: float, theta_b: float) -> float:
    """What one unit of capital becomes: expected to be 1 at most, if the candidate's rate is not the higher one."""
    n_a, k_a, n_b, k_b = seen.n_a, seen.k_a, seen.n_b, seen.k_b
    if not (n_a and n_b):
        return 1.0
    theta = (n_a * theta_a + n_b * theta_b) / (n_a + n_b)
    log_e = (
        k_a * log(theta_a / theta)
        + (n_a - k_a) * log((1 - theta_a) / (1 - theta))
        + k_b * log(theta_b / theta)
        + (n_b - k_b) * log((1 - theta_b) / (1 - theta))
    )
    return exp(min(LOG_MOST, log_e))


def shifted(rate: float, odds: float) -> float:
    """The rate whose odds are `odds` times those of the given rate."""
    return odds * rate / (1 - rate + odds * rate)


def bin_of(value: float) -> int:
    """The bin of a time or a length. BINS_PER_TOLERANCE bins further, values are TOLERANCE times as large."""
    return min(int(BINS_PER_LOG * log(max(value, 1))), BIN_MAX)


def value_of(place: int) -> float:
    """The largest value of a bin."""
    return float(TOLERANCE ** ((place + 1) / BINS_PER_TOLERANCE))


def add_bins(to: Bins, more: Bins) -> None:
    for place, count in more.items():
        to[place] = to.get(place, 0) + count


def upper_quartile(bins: Bins) -> int | None:
    return _quantile(bins, 0.75)


def lower_quartile(bins: Bins) -> int | None:
    return _quantile(bins, 0.25)


def count_beyond(ours: Bins, theirs: Bins, limit: int | None, way: int) -> Counts | None:
    """Events are values above the limit (`way` 1) or below it (-1); those of the candidate are TOLERANCE beyond it."""
    if limit is None:
        return None
    return Counts(
        sum(ours.values()),
        sum([count for place, count in ours.items() if way * (place - limit) > BINS_PER_TOLERANCE]),
        sum(theirs.values()),
        sum([count for place, count in theirs.items() if way * (place - limit) > 0]),
    )


def _quantile(bins: Bins, share: float) -> int | None:
    total = sum(bins.values())
    if total < QUARTILE_OBSERVATIONS:
        return None
    above = share * total
    for place in sorted(bins):
        above -= bins[place]
        if above <= 0:
            return place
    raise AssertionError
