"""What happened to a request: everything that is stored of it, in order, for operators. And the newest requests.

A request has a metering row if its credit was held, an entry if it was charged, and details (observe/details.py) if it
was not plain. None of them has content.
"""

import heapq
import re

import msgspec

from cadenza.control.account.accounts import get_account
from cadenza.control.keys import find_keys
from cadenza.core.codes import KEY_PREFIX, display_prefix
from cadenza.core.errors import ControlError, Unknown
from cadenza.core.faults import describe_fault
from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.public import to_record
from cadenza.core.records import CLASSES, DISCONNECTED_STATUS, SEARCH, RequestStep
from cadenza.core.spans import DAY_MS, parse_duration_ms
from cadenza.ledger import statement
from cadenza.ledger.statement import ChargeDetails
from cadenza.observe.health import RULES
from cadenza.store.store import Store
from cadenza.store.tables import accounts, keys, request_details
from cadenza.store.tables.request_details import (
    CHARGED,
    UNCHARGED,
    MeteredRequest,
    NumberedRequest,
    NumberedRequests,
    RecentRequest,
    RunningRequest,
    StoredDetails,
)

TEXT_MAX = 200
FOUND_MAX = 10
PAGE = 50
SHOWN_CLASSES = (*CLASSES, SEARCH)
STATUS = re.compile(r"[1-5]([0-9]{2}|xx)")
SCANNED = 1_000  # of the newest requests, for those that are wanted
BEHIND_MAX = 1_000  # how many requests a follower may be behind
OVERLAP = 200
UNCONFIRMED_MS = 5_000  # a client does not wait longer for its charge: ledger/writer.py

CAUSES = {  # the cause of an outcome -> what happened, and what to do
    "rate": ("Its key made more requests than its rate allows.", "Raise the key's rate, or the rate in [limits]."),
    "slots": ("All slots for chats were taken.", RULES["no_room"].advice),
    "routes": ("All routes of the class were busy.", RULES["routes_full"].advice),
    "upstream": ("No route of the class answered.", "The steps say why each failed."),
    "store": ("The store did not answer.", "Run 'cadenza doctor': it says what is wrong with the store."),
    "memory": ("The service had no memory left for it.", "Give the service more memory, or fewer slots."),
    "uploads": ("Too many large bodies arrived at once.", "It can be sent again."),
    "large_bodies": ("The processes for large bodies were busy.", "It can be sent again."),
    "unpaid": ("Refused and free requests of its account took too much CPU time.", "Its clients should correct them."),
    "files": ("The processes that read files were busy.", "It can be sent again."),
    "open_files": ("The process had no file left for a connection.", "Raise its limit of open files (ulimit -n)."),
    "connections": ("Its key, or the service, had too many connections open.", "Clients should reuse connections."),
    "shutdown": ("The service was stopping.", "It can be sent again."),
    "credit": ("Account or spend cap could not pay for it.", "Add credit, or raise the cap of the key."),
    "scope": ("Its key lacks the scope.", "Create a key with this scope, or one without restrictions."),
    "invalid": ("The request was invalid, or the provider said so.", "The client was told what to correct."),
    "context_length": ("The prompt was longer than the window of every route.", "Use a class with a larger window."),
    "attachment": ("A file in it could not be read.", "The client was told which one, and why."),
    "not_taken": ("No route of the class takes its parts or tools.", "Add a route that does."),
    "not_found": ("The path or the model does not exist.", ""),
    "method": ("The path exists, but not with this method.", ""),
    "repeated": ("Its idempotency key was used before, so it was not served twice.", ""),
    "body_late": ("Its body did not arrive in time.", ""),
    "body_size": ("Its body was too large.", ""),
    "encoding": ("Its body was compressed.", ""),
    "key_revoked": ("Its key was revoked, or its account suspended, while it ran.", ""),
    "disconnected": ("The client disconnected.", ""),
    "swept": ("Its process was taken for dead, and another one ended it.", "Look for pauses of the process."),
    "charge_unconfirmed": ("The store did not confirm the charge in time.", "Run 'cadenza doctor'."),
    "internal": ("An internal error ended it.", "The log has the places in the code, with the same request id."),
}
BEFORE_HOLD = ("slot", "grounded")  # steps that a request reaches before its credit is held
PASSED_OVER = {
    "full": "it has as many requests as it takes",
    "circuit_open": "its circuit is open",
    "resting": "it rests by hand",
}


class UnknownRequest(ControlError):
    """No request with this id is known, or it has not ended."""


class ExplainedStep(msgspec.Struct, frozen=True):
    """What happened, this many milliseconds after the request began."""

    at_ms: int
    text: str


class ChargePart(msgspec.Struct, frozen=True):
    """Tokens of one kind, their price in nano-dollars, and the product."""

    tokens: int
    kind: str
    price_nano: int
    amount_nano: int


class OperatorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request. `charged` is negative, and `granted` the part of it that was granted credit.

    Prices are in dollars a token. A request that was refused before its credit was held has no completion id, and is
    known for three days. One whose metering row was removed lacks some of this.
    """

    completion_id: str | None
    request_id: str | None = None
    account_id: str
    email: str
    key_id: str | None = None
    created_at: str
    charged: str
    granted: str | None = None
    refunded: str | None = None
    class_id: str | None = None
    version: int | None = None
    provider: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    input_price: str | None = None
    cached_input_price: str | None = None
    output_price: str | None = None
    key_name: str | None = None
    key_prefix: str | None = None
    started_at: str | None = None
    endpoint: str = "chat"
    is_stream: bool | None = None
    status: int | None = None
    cause: str = ""
    end: str = ""
    advice: str = ""
    first_byte_ms: int | None = None
    duration_ms: int | None = None
    settle_ms: int | None = None
    is_estimated: bool = False
    held: str | None = None
    short: str | None = None
    provider_cost: str | None = None
    searches: str | None = None  # charged beside it, for web searches
    charge: list[ChargePart] = []
    steps: list[ExplainedStep] = []


# What the store has of a request: one of the three is there.
Found = tuple[ChargeDetails | None, MeteredRequest | None, StoredDetails | None]


async def explain(store: Store, text: str, now_ms: int) -> list[OperatorRequest]:
    """The request with this completion id, or the newest with this request id. UnknownRequest if none is known."""
    text = text.strip()
    is_id = bool(text) and len(text) <= TEXT_MAX and is_plain(text)
    found = await _find(store, text, now_ms) if is_id else []
    if not found:
        running = await request_details.find_running(store, text) if is_id else None
        raise UnknownRequest(_say_running(running, now_ms) if running else _say_unknown(text))
    return [await _explain(store, *parts) for parts in found]


async def explain_one(store: Store, text: str, now_ms: int) -> OperatorRequest | None:
    """The newest of them, if there is one."""
    try:
        return (await explain(store, text, now_ms))[0]
    except UnknownRequest:
        return None


async def _find(store: Store, text: str, now_ms: int) -> list[Found]:
    """By completion id there is one at most. A request id is chosen by the client, so it may have several."""
    details = await request_details.find(store, text)
    by_completion = {one.completion_id: one for one in details if one.completion_id}
    if text.startswith("chatcmpl-"):
        by_completion.setdefault(text, details[0]) if details else None
        ids = [text]
    else:
        ids = [one.completion_id or "" for one in await find_requests(store, text, now_ms)]
        ids += [one for one in by_completion if one not in ids]
    found: list[Found] = [(None, None, one) for one in details if not one.completion_id]
    for completion_id in ids[:FOUND_MAX]:
        charge = await statement.find_charge(store, completion_id)
        metered = await request_details.find_metered(store, completion_id)
        if any(parts := (charge, metered, by_completion.get(completion_id))):
            found.append(parts)
    return found


async def _explain(
    store: Store, charge: ChargeDetails | None, metered: MeteredRequest | None, details: StoredDetails | None
) -> OperatorRequest:
    one, entry = metered or details, charge and charge.entry
    account_id, key_id = (one.account_id, one.key_id) if one else (charge.account_id if charge else "", None)
    account = await accounts.get(store, account_id)
    [key] = await keys.list_newest(store, "id", key_id, 0, 1) if key_id else [None]
    searches = await request_details.find_searches(store, metered) if metered else []
    ended_at = entry.created_at if entry else details.ended_at if details else 0
    if metered and not entry:
        ended_at = metered.started_at + metered.duration_ms
    end, advice = _say_end(metered, details)
    return to_record(
        OperatorRequest,
        *filter(None, (metered, details, entry)),
        account_id=account_id,
        email=account.email if account else "",
        key_id=key_id,
        created_at=rfc3339(ended_at),
        charged=format_dollars(entry.amount_nano if entry else 0),
        class_id=one.class_id or None if one else None,
        key_name=key.name if key else None,
        key_prefix=key.prefix if key else None,
        started_at=rfc3339(ended_at - one.duration_ms) if one else None,
        end=end,
        advice=advice,
        short=format_dollars(metered.short_nano) if metered and metered.short_nano else None,
        searches=format_dollars(sum(search.cost_nano for search in searches)) if searches else None,
        charge=_charge_parts(metered) if metered else [],
        steps=_list_steps(one, metered, details) if one else [],
    )


def _charge_parts(metered: MeteredRequest) -> list[ChargePart]:
    """How the charge comes about."""
    if metered.entry_nano is None:
        return []
    input_nano, cached_nano = metered.input_price_nano, metered.cached_input_price_nano
    counts = (
        (metered.prompt_tokens - metered.cached_tokens, "in", input_nano),
        (metered.cached_tokens, "in, cached", input_nano if cached_nano is None else cached_nano),
        (metered.completion_tokens, "out", metered.output_price_nano),
    )
    return [ChargePart(tokens, kind, nano, tokens * nano) for tokens, kind, nano in counts if tokens]


def _list_steps(
    one: MeteredRequest | StoredDetails, metered: MeteredRequest | None, details: StoredDetails | None
) -> list[ExplainedStep]:
    """In order: those of one millisecond too. A plain request has its first byte and its end."""
    steps = list[ExplainedStep]()
    if details:
        steps += [ExplainedStep(step.at_ms, say_step(step)) for step in details.steps if step.kind in BEFORE_HOLD]
        if details.held_ms is not None:
            steps.append(ExplainedStep(details.held_ms, "credit was held"))
        steps += [ExplainedStep(step.at_ms, say_step(step)) for step in details.steps if step.kind not in BEFORE_HOLD]
        has_answered = any(step.kind == "answered" for step in details.steps)
        if details.answered_ms is not None and not has_answered:
            steps.append(ExplainedStep(details.answered_ms, f"{details.provider}/{details.model} began to answer"))
    if one.first_byte_ms is not None:
        steps.append(ExplainedStep(one.first_byte_ms, "the client was sent the first byte"))
    steps.sort(key=lambda step: step.at_ms)
    steps.append(ExplainedStep(one.duration_ms, f"it ended with {one.status}"))
    if details and details.settle_ms is not None:
        what = "the charge" if metered and metered.entry_nano is not None else "the end of the hold"
        steps.append(ExplainedStep(one.duration_ms + details.settle_ms, f"{what} was in the store"))
    return steps


def say_step(step: RequestStep) -> str:
    """A step in words."""
    match step.kind:
        case "slot":
            return "it had a slot, after it had waited for one"
        case "grounded":
            return f"reference material was added: {step.cause}"
        case "passed_over":
            return f"{step.route} was not asked: {PASSED_OVER.get(step.cause, step.cause)}"
        case "answered":
            return f"{step.route} began to answer"
        case _:
            what = "broke off" if step.kind == "broke_off" else "failed"
            return f"{step.route} {what}: {describe_fault(step.cause, step.status)}"


def _say_end(metered: MeteredRequest | None, details: StoredDetails | None) -> tuple[str, str]:
    """How it ended, and what to do."""
    one = metered or details
    status = one.status if one else 0
    if metered and metered.source == "sweep":
        return "Its process died; another process charged what was delivered.", "Look for the end of that process."
    if details and details.cause in CAUSES:
        return CAUSES[details.cause]
    if details and details.settle_ms is not None and details.settle_ms >= UNCONFIRMED_MS:
        return "The store confirmed its charge too late, so the client got an error.", "Run 'cadenza doctor'."
    if status == DISCONNECTED_STATUS:
        return CAUSES["disconnected"]
    if status >= 500:
        return "Its answer broke off.", "The steps say why."
    return ("It was served.", "") if status == 200 else ("", "")


def _say_running(running: RunningRequest, now_ms: int) -> str:
    seconds = (now_ms - running.started_at) // 1000
    return (
        f"This request has not ended: a stream of {running.class_id} in process {running.process}, for {seconds} s, "
        f"with {running.delivered_tokens:,} tokens delivered when that was last noted. Ask again when it has ended."
    )


def _say_unknown(text: str) -> str:
    if text.startswith("sk-cdz-"):
        return "This is an API key, not a request. Give the id of a request: x-request-id, or the id of a completion."
    kinds = (
        "It may still run, be older (a completion id is found at any age, a request id for a day, and a refused request"
        " for three days), be in the store of another config, be one of many alike that were refused, or have been"
        " refused before its key was known. The log has a line for every request, with its request_id."
    )
    return f"No request with the id {text[:TEXT_MAX]!r} is known. {kinds}"


class RequestFilter(msgspec.Struct, frozen=True):
    """Which requests are shown. A status may be a class of statuses: `5xx`. Empty fields let all through."""

    email: str = ""
    key: str = ""  # its id or displayed prefix
    class_id: str = ""
    statuses: tuple[str, ...] = ()
    slow_ms: int = 0

    def takes(self, one: RecentRequest) -> bool:
        status = str(one.status)
        return (
            (not self.email or one.email == self.email)
            and (not self.key or self.key in (one.key_id, one.key_prefix))
            and (not self.class_id or one.class_id == self.class_id)
            and (not self.statuses or any(status == wanted or f"{status[0]}xx" == wanted for wanted in self.statuses))
            and one.duration_ms >= self.slow_ms
        )


ALL = RequestFilter()


def parse_filter(email: str = "", key: str = "", class_id: str = "", status: str = "", slow: str = "") -> RequestFilter:
    """From what was typed: a key may be given whole. ControlError if a status, a time or a class is not one."""
    statuses = tuple(dict.fromkeys(one.strip().lower() for one in status.split(",") if one.strip()))
    for one in statuses:
        if not STATUS.fullmatch(one):
            raise ControlError(f"{one[:TEXT_MAX]!r} is not a status. Write one like 429 or 5xx, or several: 429,5xx.")
    email, key, class_id = email.strip().lower(), key.strip(), class_id.strip()
    if key.startswith(KEY_PREFIX):
        key = display_prefix(key)
    if class_id and class_id not in SHOWN_CLASSES:
        raise ControlError(f"{class_id[:TEXT_MAX]!r} is not a class. Use one of: {', '.join(SHOWN_CLASSES)}.")
    return RequestFilter(email, key, class_id, statuses, parse_duration_ms(slow.strip() or "0"))


async def check_filter(store: Store, wanted: RequestFilter, now_ms: int) -> None:
    """ControlError if there is no such account or key: a mistyped one would let nothing through, silently."""
    if wanted.email:
        await get_account(store, wanted.email)
    if wanted.key and not await find_keys(store, wanted.key, now_ms):
        raise Unknown("key", f"No key matches {wanted.key[:TEXT_MAX]!r}. Give its first 12 characters, or its id.")


class RequestFollower:
    """Reads the requests that have ended, again and again, and bounds what that costs the store.

    A reader that falls behind goes on with the newest, and is told how many it missed.
    """

    def __init__(self, store: Store, wanted: RequestFilter) -> None:
        self._store = store
        self._wanted = wanted
        self._after = {CHARGED: 0, UNCHARGED: 0}
        self._seen: dict[NumberedRequests, set[int]] = {CHARGED: set(), UNCHARGED: set()}

    async def newest(self, count: int) -> list[NumberedRequest]:
        """The newest that are wanted, among the last SCANNED; oldest first. Later ones are read by `more`."""
        found = list[list[NumberedRequest]]()
        for kind in self._after:
            self._after[kind] = await kind.last(self._store)
            newest = await kind.newest(self._store, max(count, OVERLAP if self._wanted == ALL else SCANNED))
            found.append(list(filter(self._wanted.takes, reversed(newest))))
            self._seen[kind] = {one.number for one in newest}
        return _merge(found)[-count:] if count else []

    async def more(self) -> tuple[list[NumberedRequest], int]:
        """Those that ended since, oldest first, and how many were left out."""
        found, missed = list[list[NumberedRequest]](), 0
        for kind in self._after:
            last = await kind.last(self._store)
            after = max(self._after[kind], last - BEHIND_MAX)
            missed += after - self._after[kind]
            # Transactions of Postgres become visible in another order than that of their numbers.
            overlap = OVERLAP if self._store.writes_in_parallel and after == self._after[kind] else 0
            later = await kind.later(self._store, after - overlap, BEHIND_MAX + overlap)
            found.append([one for one in later if one.number not in self._seen[kind] and self._wanted.takes(one)])
            self._seen[kind] = {one.number for one in later}
            self._after[kind] = max([last, *self._seen[kind]])
        return _merge(found), missed


def _merge(found: list[list[NumberedRequest]]) -> list[NumberedRequest]:
    """Each kind stays in the order of its numbers, which the store gives; clocks only interleave the kinds."""
    return list(heapq.merge(*found, key=lambda one: one.ended_at))


async def find_requests(store: Store, text: str, now_ms: int) -> list[RecentRequest]:
    """The request with this completion id, or those of the last day with this request id.

    Request ids have no index, so older requests are found by their completion id only; the log has both.
    """
    return await request_details.find_recent(store, text, now_ms - DAY_MS, PAGE) if is_plain(text) else []


def is_plain(text: str) -> bool:
    """Whether this can be a part of an id or an address. For anything else the store is not asked."""
    return text.isascii() and text.isprintable()
