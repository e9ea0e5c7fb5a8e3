"""What a trial finds, in plain words. No text of the upstream, no address and no key is ever in them."""

from typing import Literal

import msgspec

from cadenza.upstreams.base import Fault, FaultKind

State = Literal["ok", "warning", "fault"]

WORDS = {
    FaultKind.UNREACHABLE: "no connection, or closed without an answer",
    FaultKind.BUSY: "it has no capacity now",
    FaultKind.REFUSED: "it refuses the request",
    FaultKind.UNAUTHORIZED: "it rejects the provider's key",
    FaultKind.FAILED: "it fails",
    FaultKind.MALFORMED: "its answer is not a chat completion",
    FaultKind.TRUNCATED: "its answer breaks off",
}
ADVICE = {
    FaultKind.UNREACHABLE: "Check base_url, and that the endpoint is up.",
    FaultKind.TIMED_OUT: "Try again with a longer --timeout, in case the model was still loading.",
    FaultKind.OVERLONG: "Try again with a longer --timeout, in case the model is slow.",
    FaultKind.BUSY: "Try again later.",
}
STATUS_ADVICE = {
    401: "Check the provider's key.",
    403: "Check the provider's key, and that it may use this model.",
    404: "Check base_url and the name of the model.",
}


class Finding(msgspec.Struct, frozen=True):
    """One thing that was tried, what happened, and what to do about it.

    `setting` is the line to add to the config: to the route, or to the provider if it is a dialect.
    """

    tried: str
    state: State
    found: str
    setting: str = ""
    advice: str = ""


def fault_words(fault: Fault, limit_s: float) -> str:
    if fault.kind in (FaultKind.TIMED_OUT, FaultKind.OVERLONG):
        return f"no complete answer within {limit_s:g} s"
    status = f" (status {fault.status})" if fault.status else ""
    return f"{WORDS[fault.kind]}{status}"


def fault_advice(fault: Fault) -> str:
    return STATUS_ADVICE.get(fault.status or 0) or ADVICE.get(fault.kind, "")
