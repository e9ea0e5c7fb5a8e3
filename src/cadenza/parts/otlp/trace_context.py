"""W3C Trace Context: what a client says about its trace, read strictly, and what an upstream is told.

A header that breaks a rule counts as absent. Nothing of it is exported but the two ids.
"""

import re
from collections.abc import Sequence

import msgspec

STATE_BYTES_MAX = 512
STATE_MEMBERS_MAX = 32
SAMPLED = 1  # the bit in the flags
_PARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(rb"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")


class TraceParent(msgspec.Struct, frozen=True):
    """The span of a client that caused a request. `state` is its `tracestate`, or empty."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool
    state: bytes = b""

    def fields(self) -> bytes:
        """The headers that name this span as the parent of another."""
        line = f"traceparent: 00-{self.trace_id.hex()}-{self.span_id.hex()}-{self.is_sampled:02x}\r\n".encode()
        return b"%btracestate: %b\r\n" % (line, self.state) if self.state else line


def read_parent(fields: Sequence[tuple[bytes, bytes]]) -> TraceParent | None:
    """The parent that the headers of a request name; None without exactly one valid `traceparent`."""
    given = [value for name, value in fields if name == b"traceparent"]
    found = _PARENT.fullmatch(given[0].strip()) if len(given) == 1 else None
    if not found or (found[1] == b"00" and found[5]):
        return None
    state = b",".join(value for name, value in fields if name == b"tracestate")
    flags = int(found[4], 16)
    return TraceParent(
        bytes.fromhex(found[2].decode()), bytes.fromhex(found[3].decode()), bool(flags & SAMPLED), _checked(state)
    )


def _checked(state: bytes) -> bytes:
    """A `tracestate` without empty members; empty if it is too long or not valid."""
    if len(state) > STATE_BYTES_MAX:
        return b""
    members = [member for part in state.split(b",") if (member := part.strip(b" \t"))]
    is_valid = len(members) <= STATE_MEMBERS_MAX and all(map(_MEMBER.fullmatch, members))
    return b",".join(members) if is_valid else b""
