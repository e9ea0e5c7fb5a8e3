"""Whether all is well, and if not, which part is at fault and what to do: one sentence for the operator's overview.

It says what this process, the metrics of its machine and the store know. The gravest problem comes first.
"""

from collections.abc import Iterator, Sequence

import msgspec

from cadenza.control.operator import SLOW_MS
from cadenza.observe.minutes import MinuteRing
from cadenza.store.tables.operators import ProviderPace

RECENT_S = 5 * 60
HOUR_S = 60 * 60
SLOW_WRITE_S = 0.5
FAILED_MIN = 5  # fewer may be chance
FAILED_SHARE = 0.05
DISK_BYTES_MIN = 512 * 1024**2
ADVICE = {  # by the kind of the last fault of a route
    "unreachable": "Check base_url of the provider, DNS and the network, and the provider's status page.",
    "timed_out": "The provider is overloaded, or first_token_s of the route is too short.",
    "busy": "The provider has no capacity for you: ask for a higher limit, or add a route.",
    "refused": "The request was at fault, not the route.",
    "unauthorized": "The provider rejects its key: set another one and reload the config.",
    "failed": "The provider answers with errors: see its status page.",
    "malformed": "The answer is no chat completion: check base_url and the dialect, and run 'cadenza doctor --deep'.",
    "truncated": "Replies break off: see the provider's status page, and proxies on the way.",
    "overlong": "A reply took too long: check the route's timeouts.",
}


class Problem(msgspec.Struct, frozen=True):
    """What is wrong, as one sentence, and what to do."""

    text: str
    advice: str
    is_bad: bool = True  # requests fail, or money is at stake


class RouteState(msgspec.Struct, frozen=True):
    """A model of a provider, as far as the sentence needs it."""

    provider: str
    model: str
    is_working: bool
    fault: str | None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the service at this moment."""

    is_draining: bool
    store_problem: str | None
    write_s: float  # how long a trial write took
    disk_free_bytes: int | None  # None: the store is not on this machine
    routes: Sequence[RouteState]
    slow: Sequence[ProviderPace]
    slots_taken: int
    slots_limit: int
    has_shared_state: bool
    mail_failure: str  # of this process
    mail_waiting: int


def find_problems(facts: Facts, minutes: MinuteRing, now_s: float) -> list[Problem]:
    """All that is wrong, the gravest first."""
    found = [*_of_store(facts), *_of_routes(facts), *_of_counts(facts, minutes, now_s), *_of_rest(facts)]
    return sorted(found, key=lambda one: not one.is_bad)


def _of_store(facts: Facts) -> Iterator[Problem]:
    if facts.is_draining:
        yield Problem(
            "The service is shutting down: new requests are refused.", "Start it again if you did not stop it."
        )
    if facts.store_problem:
        yield Problem(
            "The store takes no writes: it is locked, full or down. Chats get 429.", f"{facts.store_problem}."
        )
    elif facts.write_s > SLOW_WRITE_S:
        yield Problem(
            f"The store is slow: a write took {facts.write_s:.1f} seconds.",
            "Look for long transactions, backups and other load on its disk.",
            is_bad=False,
        )
    if facts.disk_free_bytes is not None and facts.disk_free_bytes < DISK_BYTES_MIN:
        free = facts.disk_free_bytes // 1024**2
        yield Problem(f"The disk of the store is almost full: {free:,} MiB are free.", "Free space, or move the store.")


def _of_routes(facts: Facts) -> Iterator[Problem]:
    """A provider is down if none of its models works; otherwise the models that do not are named."""
    down = [one for one in facts.routes if not one.is_working]
    if down and len(down) == len(facts.routes):
        yield Problem("No route works: every chat fails.", _advise(down[0]))
    for provider in dict.fromkeys(one.provider for one in down):
        own = [one for one in down if one.provider == provider]
        if len(own) == sum(one.provider == provider for one in facts.routes):
            yield Problem(f"The provider {provider} is down: {_fault(own[0])}.", _advise(own[0]))
        else:
            names = ", ".join(one.model for one in own)
            yield Problem(f"The provider {provider} does not answer for {names}: {_fault(own[0])}.", _advise(own[0]))
    for pace in facts.slow:
        yield Problem(
            f"The provider {pace.provider} is slow: {pace.slow:,} of {pace.replies:,} replies of the last 10 minutes "
            f"took more than {SLOW_MS // 1000} seconds to begin.",
            "See its status page; a second route for the class would take over.",
            is_bad=False,
        )


def _of_counts(facts: Facts, minutes: MinuteRing, now_s: float) -> Iterator[Problem]:
    refused = minutes.since(now_s - RECENT_S, "cadenza_refused_total")
    if facts.slots_taken >= facts.slots_limit or refused["slots"]:
        yield Problem(
            f"The service is out of slots: {facts.slots_taken:,} of {facts.slots_limit:,} chat requests at once; "
            f"{refused['slots']:,} were refused in the last 5 minutes.",
            "Raise concurrency in [limits] if memory and the providers allow it, or add a process.",
        )
    if refused["routes"]:
        yield Problem(
            f"The providers have no capacity: {refused['routes']:,} requests were refused in the last 5 minutes.",
            "Ask the provider for a higher limit, or add a route.",
        )
    replies = minutes.since(now_s - RECENT_S, "cadenza_requests_total")
    failed = sum(count for status, count in replies.items() if status >= "500")
    if failed >= FAILED_MIN and failed >= FAILED_SHARE * replies.total():
        yield Problem(
            f"{failed:,} of {replies.total():,} replies of the last 5 minutes were errors of ours or of a provider.",
            "The table of routes and the log say which.",
        )
    if lost := minutes.since(now_s - HOUR_S, "cadenza_ledger_lost_total").total():
        yield Problem(
            f"{lost:,} replies of the last hour could not be charged in time.",
            "The store did not confirm them: run 'cadenza doctor' and then 'cadenza ledger check'.",
        )
    events = minutes.since(now_s - HOUR_S, "cadenza_payment_events_total")
    if events["bad_signature"] and not events["done"]:
        yield Problem(
            f"The payments webhook fails: {events['bad_signature']:,} events of the last hour had a wrong signature.",
            "Check webhook_secret_env in [payments.stripe] against the provider's page of the webhook.",
        )


def _of_rest(facts: Facts) -> Iterator[Problem]:
    if facts.mail_failure:
        yield Problem(
            f"E-mail is not sent: {facts.mail_failure}. {facts.mail_waiting:,} are waiting in this process.",
            "Check [mail] and the mail server.",
            is_bad=False,
        )
    if not facts.has_shared_state:
        yield Problem(
            "Valkey does not answer: each process keeps to its share of rates and slots.",
            "Start it, or check url in [shared_state].",
            is_bad=False,
        )


def advise(fault: str | None) -> str:
    """What to do about a route whose last fault was of this kind."""
    return ADVICE.get(fault or "", "See the log.")


def _advise(route: RouteState) -> str:
    return advise(route.fault)


def _fault(route: RouteState) -> str:
    return f"its last error is {route.fault.replace('_', ' ')}" if route.fault else "its requests fail"
