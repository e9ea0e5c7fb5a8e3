"""What each rule of health.py finds in the facts, as sentences for operators. Pure."""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from cadenza.core.faults import FaultKind, advise, describe_fault
from cadenza.observe.facts import Facts, RouteFact
from cadenza.observe.minutes import ALL, LATE, LATE_S
from cadenza.observe.problem import Find, Found

SLOW_WRITE_S = 0.5
CHARGE_WAIT_S = 10.0
DISK_BYTES_MIN = 512 * 1024**2
FEW = 5  # fewer may be chance
FAILED_SHARE = 0.05
LATE_SHARES = {  # which part of the values may be later than LATE_S
    "cadenza_first_byte_seconds": 0.2,
    "cadenza_stream_gap_seconds": 0.05,
    "cadenza_ledger_commit_seconds": 0.01,
    "cadenza_loop_lag_seconds": 0.05,
}
SHORT_NANO = 1_000_000_000
NO_ROOM = ("slots", "connections", "uploads", "large_bodies")
KINDS_OF_THEIR_OWN = (FaultKind.UNAUTHORIZED.value, FaultKind.QUOTA.value)


def is_true(name: str) -> Find:
    """For a fact that says all."""

    def find(facts: Facts) -> Iterator[Found]:
        if getattr(facts, name):
            yield Found()

    return find


def noted(kind: str) -> Find:
    """For what this process knows by itself."""

    def find(facts: Facts) -> Iterator[Found]:
        if words := facts.notes.get(kind):
            yield Found(words)

    return find


def takes_long(name: str, what: str) -> Find:
    """For a histogram of which too many values are late."""
    return lambda facts: late(facts, name, what)


def store_fails(facts: Facts) -> Iterator[Found]:
    if facts.store_failure:
        yield Found(facts.store_failure, facts.store_advice)
    elif facts.charge_wait_s > CHARGE_WAIT_S:
        yield Found(f"A charge has waited for {facts.charge_wait_s:.0f} seconds.")


def store_slow(facts: Facts) -> Iterator[Found]:
    if facts.store_failure:
        return
    if facts.write_s > SLOW_WRITE_S:
        yield Found(f"A write took {facts.write_s:.1f} seconds.")
    yield from late(facts, "cadenza_ledger_commit_seconds", "transactions")


def disk_full(facts: Facts) -> Iterator[Found]:
    free = facts.disk_free_bytes
    if free is not None and free < DISK_BYTES_MIN:
        yield Found(f"{free // 1024**2:,} MiB are free.")


def routes_with(*kinds: str) -> Find:
    """Routes that do not work for one of these faults, or for another one than those of their own."""

    def find(facts: Facts) -> Iterator[Found]:
        down = [one for one in facts.routes if one.is_broken]
        own = [one for one in down if (one.fault in kinds if kinds else one.fault not in KINDS_OF_THEIR_OWN)]
        for (fault, status), same in groupby(sorted(own, key=_fault), _fault):
            names = ", ".join(one.name for one in same)
            why = describe_fault(fault, status) if fault else "its requests fail"
            yield Found(f"{names}: {why}.", "" if kinds else advise(fault))

    return find


def _fault(route: RouteFact) -> tuple[str, int]:
    return route.fault, route.status or 0


def chats_fail(facts: Facts) -> Iterator[Found]:
    replies = facts.recent.get("cadenza_requests_total", Counter[str]())
    failed, total = sum(count for status, count in replies.items() if status >= "500"), replies.total()
    if failed >= FEW and failed > FAILED_SHARE * total:
        yield Found(f"{failed:,} of {total:,} in the last 5 minutes.")


def slow_replies(facts: Facts) -> Iterator[Found]:
    for found in late(facts, "cadenza_first_byte_seconds", "first bytes"):
        busy = max(facts.routes, key=lambda one: one.in_flight, default=None)
        hint = f" Most of those in flight are at {busy.name}." if busy and busy.in_flight else ""
        yield Found(found.words + hint)


def no_room(facts: Facts) -> Iterator[Found]:
    refused = {reason: facts.count("cadenza_refused_total", reason) for reason in NO_ROOM}
    is_full = 0 < facts.slots_limit <= facts.slots_taken and not facts.count("cadenza_refused_total", "routes")
    if is_full or any(refused.values()):
        counts = ", ".join(f"{count:,} for {reason}" for reason, count in refused.items() if count) or "none"
        taken = f"{facts.slots_taken:,} of {facts.slots_limit:,} slots are taken"
        yield Found(f"{taken}; refused in the last 5 minutes: {counts}.")


def routes_full(facts: Facts) -> Iterator[Found]:
    if refused := facts.count("cadenza_refused_total", "routes"):
        full = [f"{one.name} {one.in_flight:,}/{one.limit:,}" for one in facts.routes if one.in_flight >= one.limit]
        now = f"; full now: {', '.join(full)}" if full else ""
        yield Found(f"{refused:,} requests were refused in the last 5 minutes{now}.")


def credit_short(facts: Facts) -> Iterator[Found]:
    if (short := facts.count_of_hour("cadenza_ledger_short_nano_total").total()) > SHORT_NANO:
        yield Found(f"${short / SHORT_NANO:,.2f} in the last hour.")


def counted_in_an_hour(name: str) -> Find:
    def find(facts: Facts) -> Iterator[Found]:
        if counts := +facts.count_of_hour(name):
            parts = ", ".join(f"{label} {count:,}".strip() for label, count in counts.items())
            yield Found(f"In the last hour: {parts}.")

    return find


def late(facts: Facts, name: str, what: str) -> Iterator[Found]:
    late, total = facts.count(name, LATE), facts.count(name, ALL)
    if late >= FEW and late > LATE_SHARES[name] * total:
        yield Found(f"{late:,} of {total:,} {what} of the last 5 minutes took more than {LATE_S[name]:g} seconds.")
