"""What is wrong with a service, why, and what to do: the only table of problems, with those of the parts.

The operator's overview, /readyz, `cadenza top`, `cadenza doctor`, `cadenza explain`, the alert rules and the docs say
what stands here. A title names nothing of the installation, so that strangers may read it; the words that follow it,
from findings.py, are for operators. Pure.
"""

from collections.abc import Iterable

from cadenza import parts
from cadenza.core.faults import FaultKind
from cadenza.observe import findings, minutes
from cadenza.observe.facts import Facts
from cadenza.observe.findings import counted_in_an_hour, is_true, routes_with, takes_long
from cadenza.observe.problem import Problem, Rule

OF_THE_CORE = (
    Rule(
        "down",
        "page",
        "A gateway does not answer.",
        "Is it running, and is its address right? Look at its log and its last exit; the other gateways serve on.",
    ),
    Rule(
        "draining",
        "ticket",
        "The service is shutting down: new requests are refused.",
        "Start it again if you did not stop it.",
        is_true("is_draining"),
        is_blocking=True,
    ),
    Rule(
        "store_fails",
        "page",
        "The store takes no writes: chats get 429.",
        "Do not restart the service: charges that are not written yet are in its memory.",
        findings.store_fails,
        is_blocking=True,
    ),
    Rule(
        "no_route",
        "page",
        "No route is usable: every chat fails.",
        "Run 'cadenza doctor --try', which asks each model for one token; 'cadenza route list' shows those that rest.",
        is_true("no_route"),
        is_blocking=True,
    ),
    Rule(
        "key_rejected",
        "page",
        "A provider rejects its key.",
        FaultKind.UNAUTHORIZED.advice,
        routes_with(FaultKind.UNAUTHORIZED.value),
    ),
    Rule(
        "provider_unpaid",
        "page",
        "The account at a provider has no credit or quota left.",
        FaultKind.QUOTA.advice,
        routes_with(FaultKind.QUOTA.value),
    ),
    Rule(
        "route_fails",
        "ticket",
        "A route fails.",
        "The 'upstream fault' lines of the log have each failure.",
        routes_with(),
    ),
    Rule(
        "chats_fail",
        "page",
        "More than 5% of the requests end with an error of ours or of a provider.",
        "'cadenza tail --status 5xx' shows them, and 'cadenza explain' why one failed.",
        findings.chats_fail,
    ),
    Rule(
        "routes_full",
        "ticket",
        "The routes of a class have as many requests as they take.",
        "Ask the provider for a higher limit, or add a route. More slots would not help.",
        findings.routes_full,
    ),
    Rule(
        "no_room",
        "ticket",
        "Requests are refused for lack of room, or all slots are taken.",
        "Raise concurrency in [limits] if memory and the providers allow it, or add processes.",
        findings.no_room,
    ),
    Rule(
        "replies_lost",
        "page",
        "Replies ended with an error because they could not be charged.",
        "The store did not confirm them: run 'cadenza doctor', then 'cadenza ledger check'.",
        counted_in_an_hour("cadenza_ledger_lost_total"),
    ),
    Rule(
        "ledger_refused",
        "page",
        "A move broke a rule of the ledger.",
        "Run 'cadenza ledger check' and keep the log of that minute: this is a bug.",
        counted_in_an_hour("cadenza_ledger_refused_total"),
    ),
    Rule(
        "disk_full",
        "page",
        "The disk of the store is almost full.",
        "Free space, or move the store.",
        findings.disk_full,
    ),
    Rule(
        "store_slow",
        "ticket",
        "The store is slow.",
        "Look for long transactions, backups and other load on its disk, and for locks and the network.",
        findings.store_slow,
    ),
    Rule(
        "slow_replies",
        "ticket",
        "Replies begin late.",
        "Look at the provider first, then at the CPU of the gateways; another route would take a part.",
        findings.slow_replies,
    ),
    Rule(
        "streams_stall",
        "ticket",
        "Streams are silent for long.",
        "Ask the provider of the class; if all classes stall, look at the CPU of the gateways.",
        takes_long("cadenza_stream_gap_seconds", "longest gaps"),
    ),
    Rule(
        "loop_lags",
        "ticket",
        "The event loop is late, and so is all that it does.",
        "Is the machine out of CPU or memory, or was the process paused? Add processes or machines.",
        takes_long("cadenza_loop_lag_seconds", "timers"),
    ),
    Rule(
        "credit_short",
        "ticket",
        "More than a dollar was due in an hour and not in the accounts.",
        "An upstream counts more prompt tokens than ours: compare its bill, or take its route out of the class.",
        findings.credit_short,
    ),
    Rule(
        "usage_doubtful",
        "ticket",
        "A provider reports impossible token counts.",
        "Ask the provider; charges were kept within what is possible.",
        counted_in_an_hour("cadenza_doubtful_usage_total"),
    ),
    Rule(
        "log_dropped",
        "ticket",
        "Lines of the log could not be written.",
        "Look at what reads standard error, and at its disk.",
        counted_in_an_hour("cadenza_log_dropped_total"),
    ),
)
TABLE: tuple[Rule, ...] = (
    *OF_THE_CORE,
    *(rule for part in parts.having("problems") for rule in part.load("problems").RULES),
)
RULES = {rule.kind: rule for rule in TABLE}
COUNTERS = minutes.COUNTERS | {name: label for rule in TABLE for name, label in rule.counters.items()}


def problems(facts: Facts) -> list[Problem]:
    """All that is wrong, the gravest first."""
    found = [rule.problem(*one) for rule in TABLE if rule.find for one in rule.find(facts)]
    return sorted(found, key=lambda one: one.severity != "page")


def blocking(found: Iterable[Problem]) -> list[Problem]:
    """The problems for which a service is not ready."""
    return [one for one in found if RULES[one.kind].is_blocking]
