"""From readings of the metrics to the numbers that an operator wants: rates, percentiles, routes, what is wrong.

Pure. Counters are compared with those of a little while ago; a counter that fell belongs to a process that was
restarted, and counts as nothing.
"""

from collections.abc import Iterable, Sequence

import msgspec

from cadenza.cli.top.scrape import Scrape
from cadenza.web.operator.problems import advise

RATE_S = 10.0
PERCENTILE_S = 60.0
HOUR_S = 3600
SLOW_FIRST_TOKEN_S = 5.0
SLOW_COMMIT_S = 0.5
SLOW_LOOP_S = 0.1
FAILED_SHARE = 0.05
STATES = ("open", "half_open", "closed")


class RouteNumbers(msgspec.Struct, frozen=True):
    """A route: the state of its circuit, its requests in flight, and its last fault. A failing one answers nothing."""

    provider: str
    model: str
    state: str
    in_flight: int
    limit: int
    last_fault: str
    last_fault_s: int | None  # ago

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.model}"

    @property
    def is_working(self) -> bool:
        return self.state in ("closed", "half open")


class TopNumbers(msgspec.Struct, frozen=True):
    """What is shown. Money is in dollars; None: not known yet, or nothing to measure."""

    at_s: float
    addresses: int
    answered: int
    processes: int
    memory_bytes: int
    requests_per_s: float
    statuses_per_s: dict[str, float]
    in_flight: int
    slots_taken: int
    slots_limit: int
    tokens_per_s: dict[str, float]
    charged_per_h: float
    cost_per_h: float
    margin_per_h: float
    first_token_s: dict[str, float | None]
    loop_lag_s: float | None
    commit_s: float | None
    holds: int
    waiting_moves: int
    refused_per_s: dict[str, float]
    faults_per_s: dict[str, float]
    routes: list[RouteNumbers]
    problems: list[str]


class Readings:
    """The readings of the last minute."""

    def __init__(self) -> None:
        self._scrapes: list[Scrape] = []

    def add(self, scrape: Scrape) -> None:
        """Keep it, and the oldest one that is needed."""
        self._scrapes.append(scrape)
        while len(self._scrapes) > 2 and self._scrapes[1].at_s <= scrape.at_s - PERCENTILE_S:
            del self._scrapes[0]

    def numbers(self, addresses: int) -> TopNumbers:
        now = self._scrapes[-1]
        rates, counts = Change(self._before(RATE_S), now), Change(self._before(PERCENTILE_S), now)
        known = rates.per_s("cadenza_charged_dollars_total", cost="known") * HOUR_S
        cost = rates.per_s("cadenza_provider_cost_dollars_total") * HOUR_S
        found = TopNumbers(
            at_s=now.at_s,
            addresses=addresses,
            answered=now.answered,
            processes=rates.gauge("cadenza_workers"),
            memory_bytes=rates.gauge("process_resident_memory_bytes"),
            requests_per_s=rates.per_s("cadenza_requests_total"),
            statuses_per_s=rates.by_label("cadenza_requests_total", "status"),
            in_flight=rates.gauge("cadenza_requests_in_flight"),
            slots_taken=rates.gauge("cadenza_slots_taken"),
            slots_limit=rates.gauge("cadenza_slots_limit"),
            tokens_per_s=rates.by_label("cadenza_tokens_total", "kind"),
            charged_per_h=rates.per_s("cadenza_charged_dollars_total") * HOUR_S,
            cost_per_h=cost,
            margin_per_h=known - cost,
            first_token_s={
                f"p{round(part * 100)}": counts.percentile("cadenza_first_byte_seconds", part)
                for part in (0.5, 0.95, 0.99)
            },
            loop_lag_s=counts.percentile("cadenza_loop_lag_seconds", 0.99),
            commit_s=counts.percentile("cadenza_ledger_commit_seconds", 0.95),
            holds=rates.gauge("cadenza_holds"),
            waiting_moves=rates.gauge("cadenza_ledger_waiting_moves"),
            refused_per_s=rates.by_label("cadenza_refused_total", "reason"),
            faults_per_s=rates.by_label("cadenza_upstream_faults_total", "provider"),
            routes=_routes(rates),
            problems=now.problems,
        )
        return msgspec.structs.replace(found, problems=[*now.problems, *find_problems(found, rates)])

    def _before(self, age_s: float) -> Scrape:
        """The newest reading that is this old, or the oldest."""
        at_s = self._scrapes[-1].at_s - age_s
        return next((one for one in reversed(self._scrapes[:-1]) if one.at_s <= at_s), self._scrapes[0])


class Change:
    """What changed between two readings."""

    def __init__(self, before: Scrape, now: Scrape) -> None:
        self._before = before
        self._now = now
        self.elapsed_s = now.at_s - before.at_s

    def gauge(self, name: str, **labels: str) -> int:
        wanted = set(labels.items())
        return round(sum(value for found, value in self._now.values.get(name, {}).items() if wanted <= set(found)))

    def grown(self, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
        before, wanted = self._before.values.get(name, {}), set(labels.items())
        return {
            found: max(0.0, value - before.get(found, 0.0))
            for found, value in self._now.values.get(name, {}).items()
            if wanted <= set(found)
        }

    def per_s(self, name: str, **labels: str) -> float:
        return sum(self.grown(name, **labels).values()) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Rates by one label, without those that are zero."""
        rates: dict[str, float] = {}
        for labels, grown in self.grown(name).items():
            if grown and self.elapsed_s > 0:
                key = dict(labels)[label]
                rates[key] = rates.get(key, 0.0) + grown / self.elapsed_s
        return dict(sorted(rates.items()))

    def percentile(self, name: str, part: float) -> float | None:
        """The upper bound of the bucket that this part of the new values is in; infinite above all bounds."""
        buckets: dict[float, float] = {}
        for labels, grown in self.grown(f"{name}_bucket").items():
            bound = float(dict(labels)["le"])
            buckets[bound] = buckets.get(bound, 0.0) + grown
        total = max(buckets.values(), default=0.0)
        return next(bound for bound in sorted(buckets) if buckets[bound] >= part * total) if total else None

    def faults(self, provider: str, model: str) -> Iterable[tuple[float, str, str]]:
        """When each kind of fault was last seen on a route, the kind, and the provider's status."""
        for labels, at_s in self._now.values.get("cadenza_route_last_fault_timestamp_seconds", {}).items():
            found = dict(labels)
            if (found["provider"], found["model"]) == (provider, model):
                yield at_s, found["kind"], found["status"]

    @property
    def routes(self) -> list[tuple[str, str]]:
        found = [dict(labels) for labels in self._now.values.get("cadenza_route_limit", {})]
        return sorted((one["provider"], one["model"]) for one in found)

    @property
    def at_s(self) -> float:
        return self._now.at_s


def _routes(change: Change) -> list[RouteNumbers]:
    return [_route(change, provider, model) for provider, model in change.routes]


def _route(change: Change, provider: str, model: str) -> RouteNumbers:
    place = {"provider": provider, "model": model}
    state = next((one for one in STATES if change.gauge("cadenza_route_state", **place, state=one)), "closed")
    if state != "open" and change.gauge("cadenza_route_failing", **place):
        state = "failing"
    at_s, kind, status = max(change.faults(provider, model), default=(0.0, "", ""))
    return RouteNumbers(
        provider=provider,
        model=model,
        state=state.replace("_", " "),
        in_flight=change.gauge("cadenza_route_in_flight", **place),
        limit=change.gauge("cadenza_route_limit", **place),
        last_fault=f"{kind} {status}".strip(),
        last_fault_s=max(0, round(change.at_s - at_s)) if kind else None,
    )


def find_problems(numbers: TopNumbers, change: Change) -> list[str]:
    """What is wrong and what to do, the gravest first."""
    found = list[str]()
    if change.per_s("cadenza_refused_total", reason="store") or change.per_s("cadenza_ledger_retries_total"):
        found.append("The store takes no writes: chats get 429. Run 'cadenza doctor'.")
    elif numbers.commit_s is not None and numbers.commit_s > SLOW_COMMIT_S:
        found.append(f"The store is slow: commits take {show_s(numbers.commit_s)}. Look for other load on its disk.")
    for route in numbers.routes:
        if not route.is_working:
            kind = route.last_fault.partition(" ")[0]
            found.append(f"{route.name} does not answer: {route.last_fault or 'its circuit is open'}. {advise(kind)}")
    if numbers.refused_per_s.get("slots") or 0 < numbers.slots_limit <= numbers.slots_taken:
        found.append(
            f"Out of slots: {numbers.slots_taken:,} of {numbers.slots_limit:,} are taken, and "
            f"{numbers.refused_per_s.get('slots', 0):.1f}/s are refused. "
            "Raise concurrency in [limits], or add processes."
        )
    found += _slow(numbers)
    errors = sum(rate for status, rate in numbers.statuses_per_s.items() if status >= "500")
    if not found and errors > FAILED_SHARE * numbers.requests_per_s:
        found.append(f"{errors:.1f}/s of the replies are errors: see 'cadenza tail --status 5xx'.")
    return found


def _slow(numbers: TopNumbers) -> list[str]:
    found, p95_s = list[str](), numbers.first_token_s["p95"]
    if p95_s is not None and p95_s > SLOW_FIRST_TOKEN_S:
        where = busiest(numbers.routes)
        found.append(
            f"Replies begin late: p95 of the first token is up to {show_s(p95_s)}."
            + (f" Most of those in flight are at {where.name}." if where else "")
        )
    if numbers.loop_lag_s is not None and numbers.loop_lag_s > SLOW_LOOP_S:
        found.append(
            f"The event loop is late by {show_s(numbers.loop_lag_s)}: the machine or the process is overloaded."
        )
    return found


def busiest(routes: Sequence[RouteNumbers]) -> RouteNumbers | None:
    busy = [one for one in routes if one.in_flight]
    return max(busy, key=lambda one: one.in_flight) if busy else None


def show_s(time_s: float | None) -> str:
    """A time for people: 12 ms, 2.5 s."""
    if time_s is None:
        return "–"
    if time_s == float("inf"):
        return "> 5 min"
    return f"{time_s * 1000:.3g} ms" if time_s < 1 else f"{time_s:.3g} s"
