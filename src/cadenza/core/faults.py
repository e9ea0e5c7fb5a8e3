"""The kinds of faults of upstreams, with words and advice: their only list, for log, metrics, pages and commands."""

from enum import Enum
from typing import Self


class FaultKind(Enum):
    """What went wrong: its name, what it means, and what to do about it."""

    DNS = "dns", "its name cannot be resolved", "Check the host in base_url, and the name servers of this machine."
    REFUSED = (
        "refused",
        "it refuses connections",
        "Check host and port in base_url, and that the endpoint is up.",
    )
    RESET = (
        "reset",
        "it closes the connection without an answer",
        "Check scheme and port in base_url, the provider's status page, and firewalls and proxies on the way.",
    )
    TIMED_OUT = (
        "timed_out",
        "nothing arrived in time",
        "It is overloaded or still loads the model, a firewall is in the way, or a timeout is too short (--timeout).",
    )
    TLS_EXPIRED = (
        "tls_expired",
        "its certificate has expired, or is not valid yet",
        "The endpoint needs a new certificate; if other machines accept this one, correct the clock of this machine.",
    )
    TLS_UNTRUSTED = (
        "tls_untrusted",
        "its certificate is of an authority that is not trusted",
        "If the authority is yours, name the file with its certificate as ca_file of the provider.",
    )
    TLS_NAME = (
        "tls_name",
        "its certificate is for another name",
        "Use a name in base_url that the certificate has.",
    )
    UNREACHABLE = (  # any other reason
        "unreachable",
        "no connection can be made",
        "Check scheme and port in base_url, the network and the proxy.",
    )
    BUSY = "busy", "it has no capacity now", "Try again later, ask the provider for a higher limit, or add a route."
    QUOTA = (
        "quota",
        "the account at the provider has no credit or quota left",
        "Pay the provider's bill, or raise the spending limit there.",
    )
    INVALID = (
        "invalid",
        "it says that the request is invalid",
        "The request is at fault, not the route. If all are, check the model and the dialect.",
    )
    UNAUTHORIZED = (
        "unauthorized",
        "it rejects the provider's key",
        "Check the provider's key, and that it may use this model. After a change, reload the config.",
    )
    NOT_FOUND = (
        "not_found",
        "it does not know the model or the address",
        "Check base_url and the name of the model of the route.",
    )
    FAILED = (  # any other error status, such as a server error
        "failed",
        "it answers with an error",
        "See the provider's status page.",
    )
    MALFORMED = (
        "malformed",
        "its answer is not a chat completion",
        "Check base_url and the dialect of the provider.",
    )
    TRUNCATED = (  # after the first byte of a response; without a finish reason
        "truncated",
        "its answer breaks off",
        "See the provider's status page, and proxies on the way.",
    )
    OVERLONG = (  # it exceeds its total time, its number of events or its size
        "overlong",
        "its answer takes too long, or is too large",
        "Check total_s of the route, and that the model keeps to max_tokens.",
    )

    _value_: str
    words: str
    advice: str

    def __new__(cls, name: str, words: str, advice: str) -> Self:
        kind = object.__new__(cls)
        kind._value_, kind.words, kind.advice = name, words, advice
        return kind


KINDS = {kind.value: kind for kind in FaultKind}


def describe_fault(name: str, status: int | None = None) -> str:
    """A kind of fault in words, if it is known."""
    kind, given = KINDS.get(name), f"{name}, status {status}" if status else name
    return f"{kind.words} ({given})" if kind else given


def advise(name: str) -> str:
    """What to do about a kind of fault."""
    kind = KINDS.get(name)
    return kind.advice if kind else "Read the `upstream fault` lines of the log."
