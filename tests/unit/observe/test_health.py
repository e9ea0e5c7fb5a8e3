"""What is wrong: each kind of problem is found in its facts and in no others, with words and advice."""

from collections import Counter

import pytest

from cadenza.core.faults import FaultKind
from cadenza.observe.facts import Facts, RouteFact, read_facts
from cadenza.observe.findings import DISK_BYTES_MIN, LATE_SHARES
from cadenza.observe.health import OF_THE_CORE, RULES, TABLE, blocking, problems
from cadenza.observe.metrics import Metrics
from cadenza.observe.minutes import ALL, LATE, LATE_S, MinuteRing, read_totals
from cadenza.observe.problem import Rule
from cadenza.observe.worker_metrics import read_families

START_S = 1_800_000_000.0


def route(fault: FaultKind, status: int | None = None, provider: str = "acme") -> RouteFact:
    return RouteFact(provider, "large", "failing", fault.value, status)


def counted(name: str, **counts: int) -> dict[str, Counter[str]]:
    return {f"cadenza_{name}": Counter(counts)}


def late(name: str) -> dict[str, Counter[str]]:
    return {f"cadenza_{name}_seconds": Counter({ALL: 20, LATE: 10})}


CASES = {
    "draining": (Facts(is_draining=True), ""),
    "store_fails": (Facts(store_failure="It is locked.", store_advice="Wait."), "It is locked."),
    "no_route": (Facts(no_route=True), ""),
    "key_rejected": (Facts(routes=[route(FaultKind.UNAUTHORIZED, 401)]), "acme/large: it rejects the provider's key"),
    "provider_unpaid": (Facts(routes=[route(FaultKind.QUOTA, 402)]), "acme/large: the account at the provider"),
    "route_fails": (
        Facts(routes=[route(FaultKind.DNS), route(FaultKind.DNS, provider="other")]),
        "acme/large, other/large: its name cannot be resolved (dns).",
    ),
    "chats_fail": (Facts(recent=counted("requests_total", **{"200": 80, "502": 20})), "20 of 100"),
    "routes_full": (
        Facts(
            slots_taken=4,
            slots_limit=4,
            routes=[RouteFact("acme", "large", in_flight=3, limit=3), RouteFact("acme", "small", limit=3)],
            recent=counted("refused_total", routes=2),
        ),
        "2 requests were refused in the last 5 minutes; full now: acme/large 3/3.",
    ),
    "no_room": (
        Facts(slots_taken=4, slots_limit=4, recent=counted("refused_total", slots=2, rate=9)),
        "4 of 4 slots are taken; refused in the last 5 minutes: 2 for slots.",
    ),
    "replies_lost": (Facts(hour=counted("ledger_lost_total", **{"": 3})), "In the last hour: 3."),
    "ledger_refused": (Facts(hour=counted("ledger_refused_total", **{"": 1})), "In the last hour: 1."),
    "disk_full": (Facts(disk_free_bytes=DISK_BYTES_MIN - 1), "511 MiB are free."),
    "store_slow": (Facts(write_s=0.7), "A write took 0.7 seconds."),
    "slow_replies": (
        Facts(recent=late("first_byte"), routes=[RouteFact("acme", "large", in_flight=2, limit=9)]),
        "10 of 20 first bytes of the last 5 minutes took more than 10 seconds. Most of those in flight are at",
    ),
    "streams_stall": (Facts(recent=late("stream_gap")), "10 of 20 longest gaps"),
    "loop_lags": (Facts(recent=late("loop_lag")), "took more than 0.25 seconds."),
    "credit_short": (Facts(hour=counted("ledger_short_nano_total", **{"": 2_500_000_000})), "$2.50"),
    "usage_doubtful": (Facts(hour=counted("doubtful_usage_total", acme=2, other=0)), "In the last hour: acme 2."),
    "log_dropped": (Facts(hour=counted("log_dropped_total", **{"": 8})), "In the last hour: 8."),
}
WELL = {
    "nothing": Facts(),
    "few failures of many": Facts(recent=counted("requests_total", **{"200": 9000, "502": 20})),
    "a few of a few late": Facts(recent={name: Counter({ALL: 5, LATE: 4}) for name in LATE_S}),
    "few failures": Facts(recent=counted("requests_total", **{"200": 9, "502": 4})),
    "most in time": Facts(recent={name: Counter({ALL: 10_000, LATE: 6}) for name in LATE_S}),
    "room on the disk": Facts(disk_free_bytes=DISK_BYTES_MIN),
    "clients over their rate": Facts(recent=counted("refused_total", rate=1000)),
    "a route that is tested": Facts(routes=[RouteFact("acme", "large", "half open", "dns")]),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_problem_is_found_in_its_facts_only(kind: str) -> None:
    """Nothing else is wrong then; the words are the title and what was found, and the advice ends with the rule's."""
    facts, words = CASES[kind]
    (found,) = problems(facts)
    assert (found.kind, found.severity) == (kind, RULES[kind].severity)
    assert found.words.startswith(RULES[kind].title)
    assert words in found.words
    assert found.advice.endswith(RULES[kind].advice)


@pytest.mark.parts(reason="their rules have cases too")
def test_every_rule_has_its_case() -> None:
    """The others need a longer memory than a process has, or a process that is gone: alerts see them."""
    assert {rule.kind for rule in OF_THE_CORE if rule.find} == set(CASES)
    assert [rule.kind for rule in TABLE if not rule.find] == ["down", "margin_negative"]
    assert len(RULES) == len(TABLE)


@pytest.mark.parametrize("name", WELL)
def test_what_is_no_problem(name: str) -> None:
    """Chance, what clients do, and what works again, are not reported."""
    assert problems(WELL[name]) == []


def test_the_gravest_come_first() -> None:
    """A page before a ticket; and only what blocks chats makes a service not ready."""
    found = problems(Facts(slots_taken=1, slots_limit=1, is_draining=True, no_route=True, disk_free_bytes=0))
    assert [one.severity for one in found] == ["page", "page", "ticket", "ticket"]
    assert {one.kind for one in blocking(found)} == {"draining", "no_route"}


def test_advice_of_a_fault_comes_first() -> None:
    """A route that fails has the advice of its fault, the store that of its error."""
    (failing,) = problems(Facts(routes=[route(FaultKind.NOT_FOUND, 404)]))
    assert failing.advice.startswith(FaultKind.NOT_FOUND.advice)
    (store,) = problems(Facts(store_failure="It is full.", store_advice="Free space."))
    assert store.advice.startswith("Free space. Do not restart")


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.kind)
def test_titles_are_sentences_that_name_nothing(rule: Rule) -> None:
    """A stranger may read them: no path, no address, no placeholder. Advice is at least one sentence."""
    title, advice = rule.title, rule.advice
    assert (title[0].isupper(), title.endswith("."), advice.endswith(".")) == (True, True, True)
    assert not any(mark in title for mark in ("/", "{", "@", "://"))


def test_facts_are_read_from_metrics() -> None:
    """Gauges of now, and what counters counted since the reading before: routes, slots, refusals, lags."""
    metrics, minutes = Metrics(), MinuteRing(START_S)
    minutes.note(read_totals(read_families(metrics.registry)), START_S)
    metrics.route_limit.labels("acme", "large").set(40)
    metrics.route_in_flight.labels("acme", "large").set(3)
    metrics.route_failing.labels("acme", "large").set(1)
    for at_s, kind, status in ((START_S, "dns", ""), (START_S + 1, "failed", "500")):
        metrics.route_last_fault.labels("acme", "large", kind, status).set(at_s)
    metrics.slots.set(2)
    metrics.slots_limit.set(4)
    metrics.refused.labels("slots").inc(7)
    for lag_s in (0.1, 0.2, 0.3):
        metrics.loop_lag.add("", lag_s)
    families = read_families(metrics.registry)
    minutes.note(read_totals(families), START_S + 60)
    facts = read_facts(families, minutes, START_S + 60)
    assert facts.routes == [RouteFact("acme", "large", "failing", "failed", 500, START_S + 1, 3, 40)]
    assert (facts.slots_taken, facts.slots_limit, facts.samples.total("cadenza_slots_taken")) == (2, 4, 2)
    assert facts.count("cadenza_refused_total", "slots") == 7
    assert [facts.count("cadenza_loop_lag_seconds", part) for part in (ALL, LATE)] == [3, 1]
    metrics.route_state.labels("acme", "large", "open").set(1)
    facts = read_facts(read_families(metrics.registry), minutes, START_S + 60)
    assert facts.routes[0].state == "open"
    metrics.route_resting.labels("acme", "large").set(1)
    assert read_facts(read_families(metrics.registry), minutes, START_S + 60).routes[0].state == "resting"


def test_each_late_histogram_has_its_share() -> None:
    """The bounds and the shares are of the same histograms."""
    assert set(LATE_S) == set(LATE_SHARES)
