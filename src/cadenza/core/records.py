"""The frozen records that cross folders. Each stage of a request makes a new one; none is changed."""

from collections.abc import Sequence
from typing import Literal

import msgspec

SCOPES = ("inference", "models", "usage")
CLASSES = ("mezzo", "forte", "fortissimo")
DEFAULT_CLASS = "forte"
RESERVED_CLASS = "piano"
AUTO = "auto"
OUTPUT_TOKENS_MAX = 131_072
CONTEXT_TOKENS_MAX = 1_000_000
Period = Literal["total", "month"]  # of a spend cap
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
SEARCH = "search"  # the class of a charged web search: no client can name it
DISCONNECTED_STATUS = 499  # of an outcome: the client disconnected before its reply was complete


class Owner(msgspec.Struct, frozen=True):
    """Acts on what an account has, and on nothing else. `name` is its address."""

    account_id: str
    name: str
    token: str | None = None  # the first characters of the access token that is used


class Operator(msgspec.Struct, frozen=True):
    """Acts on what any account has. `name` is the address of its account, or what acts without one."""

    name: str
    token: str | None = None


Actor = Owner | Operator  # in the audit log
COMMAND_LINE = Operator("command line")


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a key has of its own. None: as usual."""

    requests_per_second: float | None = None
    burst: int | None = None


class Principal(KeyLimits, frozen=True):
    """Who is asking: a live key and the account that it spends for."""

    key_id: str
    account_id: str
    scopes: frozenset[str]
    preferred_class: str
    balance_nano: int = 0  # of the account when the key was looked up, or less by now
    is_capped: bool = False  # the key has a spend cap: its credit is always held in the store
    may_search: bool = True  # the account lets replies use web search
    has_notes: bool = False  # the account has notes, and lets replies use them
    shows_cost: bool = False  # the account wants replies to say what they cost


class Cap(msgspec.Struct, frozen=True):
    """The most that a key may spend, in total or in each calendar month."""

    limit_nano: int
    period: Period = "total"


class Timeouts(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How long a route may stay silent, and how long a reply may take in all, in seconds."""

    connect_s: float = 5.0
    first_token_s: float = 60.0
    idle_s: float = 60.0
    total_s: float = 3600.0


RetentionBy = Literal["contract", "api"]  # what makes a provider keep nothing: its promise, or its API


class Route(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way to serve a class: a provider's model, its limits and its place in line."""

    provider: str
    model: str
    context_tokens: int
    max_output_tokens: int
    order: int = 0
    weight: int = 1
    timeouts: Timeouts = Timeouts()
    continues: bool = False  # it can go on with an answer that another route began
    system: Literal["one", "each"] = "one"  # whether leading system messages are joined into one
    reasoning: Literal["pass", "drop"] = "pass"  # whether reasoning goes to the client and back
    always_send_max_tokens: bool = False
    max_tokens_field: str = ""  # its name for `max_tokens`, instead of the dialect's
    omit: tuple[str, ...] = ()  # fields of a request that it is not sent
    drops: tuple[str, ...] = ()  # these, and those that its dialect leaves out
    passes: tuple[
        str, ...
    ] = ()  # fields that most are not sent, and it is: its dialect takes them, or its setting says so
    fields: str = ""  # further fields of every request, as a JSON object
    custom_tools: bool = True  # it can take tools of type `custom`
    vision: bool = False  # and parts of a message: `image_url`
    audio: bool = False  # `input_audio`
    files: bool = False  # `file`, on the tool path; on the plain path files are read here
    retention_by: RetentionBy = "contract"  # what it demands of its provider

    @property
    def name(self) -> str:
        """PROVIDER/MODEL, as operators write it."""
        return f"{self.provider}/{self.model}"


class Plan(msgspec.Struct, frozen=True):
    """The class that serves a request and its routes, in the order in which they are tried."""

    class_id: str
    routes: tuple[Route, ...]
    max_output_tokens: int  # the most that any of its routes can generate
    context_tokens: int  # the largest window of its routes
    spare_tokens: int  # the least that a window of its routes has besides its route's longest answer
    fields_bytes: int = 0  # the most that one of its routes adds to a request by its configuration

    @classmethod
    def of(cls, class_id: str, routes: tuple[Route, ...]) -> "Plan":
        return cls(
            class_id,
            routes,
            max(route.max_output_tokens for route in routes),
            max(route.context_tokens for route in routes),
            min(route.context_tokens - route.max_output_tokens for route in routes),
            max(len(route.fields.encode()) for route in routes),
        )


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one reply. `estimated`: our own count, because the upstream gave none."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    estimated: bool = False
    completion_details: dict[str, int] | None = None


class ReplyResult(msgspec.Struct, frozen=True):
    """How an upstream's reply ended. It has a finish reason, or the fault that broke it off."""

    usage: Usage
    finish_reason: FinishReason | None
    fault: str | None = None
    is_free: bool = False  # it failed before anything was delivered
    is_doubtful: bool = False  # the upstream's counts could not be true


class BilledPart(msgspec.Struct, frozen=True):
    """What a provider counts otherwise than the usage of a request says. Numbers may be negative."""

    provider: str
    model: str
    prompt_tokens: int
    completion_tokens: int


class RequestStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something unusual that happened to a request, `at_ms` after it began.

    | kind | what happened |
    |---|---|
    | `slot` | it waited, and then it had a slot |
    | `grounded` | reference material was added: `cause` says what, in the words of the reply's header |
    | `passed_over` | a route was not asked: `cause` is `resting`, `full` or `circuit_open` |
    | `failed` | a route failed before it began to answer: `cause` is the kind of fault, `status` the provider's |
    | `broke_off` | a route failed after it had begun to answer |
    | `answered` | a route began to answer, after others had failed |
    """

    at_ms: int
    kind: str
    route: str = ""
    cause: str = ""
    status: int | None = None


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended: counts and metadata, never content.

    Made once for each request, however it ended. The ledger, the metrics and the log line are all written from it.
    """

    request_id: str  # the x-request-id
    endpoint: str
    status: int  # of HTTP, or DISCONNECTED_STATUS
    duration_ms: int
    ended_at: int  # Unix milliseconds
    key_id: str = ""
    account_id: str = ""
    completion_id: str = ""  # of a chat whose credit was held
    class_id: str = ""
    version: int | None = None  # of the class; None where no credit was held
    provider: str = ""
    model: str = ""
    usage: Usage | None = None  # what is charged; None where nothing is
    first_byte_ms: int | None = None
    gap_ms: int | None = None  # the longest between two chunks; None of a reply with fewer
    fault: str = ""  # the kind of upstream fault that broke off its stream, or that left it without an answer
    has_doubtful_usage: bool = False  # the upstream's counts could not be true
    finish_reason: str = ""  # of a reply that is complete
    also_billed: Sequence[BilledPart] = ()  # of a continued reply: by the providers of all its parts
    cause: str = ""  # why it was refused or ended early: one word
    held_s: float | None = None  # when its credit was held, and
    answered_s: float | None = None  # when its last route began to answer: seconds after it began
    steps: Sequence[RequestStep] = ()  # what else happened
