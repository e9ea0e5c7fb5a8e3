"""W3C Trace Context: which headers of a client count, and what an upstream is told."""

import pytest

from cadenza.parts.otlp.trace_context import TraceParent, read_parent

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE_ID}-{SPAN_ID}-01"


def read(traceparent: str, *states: str) -> TraceParent | None:
    states_sent = [(b"tracestate", state.encode()) for state in states]
    return read_parent([(b"host", b"localhost"), (b"traceparent", traceparent.encode()), *states_sent])


@pytest.mark.parametrize(
    ("given", "is_sampled"),
    [(GOOD, True), (GOOD[:-2] + "00", False), (GOOD[:-2] + "03", True), (f"cc{GOOD[2:]}-later", True)],
)
def test_valid_parents(given: str, is_sampled: bool) -> None:
    """The ids are taken, and of the flags the one for sampling; a later version may say more."""
    found = read(given)
    assert found
    assert (found.trace_id.hex(), found.span_id.hex(), found.is_sampled) == (TRACE_ID, SPAN_ID, is_sampled)
    assert found.fields() == f"traceparent: {GOOD[:-2]}0{int(is_sampled)}\r\n".encode()


@pytest.mark.parametrize(
    "given",
    [
        "",
        "text of a client",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        GOOD.upper(),
        GOOD + "-more",
        GOOD[:-1],
        GOOD + "\r\nx-injected: 1",
        "é" + GOOD[1:],
    ],
)
def test_parents_that_break_a_rule(given: str) -> None:
    """They count as absent."""
    assert read(given) is None


def test_two_parents() -> None:
    """None of them counts."""
    assert read_parent([(b"traceparent", GOOD.encode())] * 2) is None


@pytest.mark.parametrize(
    ("states", "passed"),
    [
        (("a=1, b@c=two words",), "a=1,b@c=two words"),
        (("a=1", ",b=2,"), "a=1,b=2"),
        (("A=1",), ""),
        (("a",), ""),
        (("a=b=c",), ""),
        (("a=é",), ""),
        (("a=" + "x" * 511,), ""),
        ((",".join(f"k{number}=1" for number in range(33)),), ""),
        ((",".join(f"k{number}={'x' * 100}" for number in range(6)),), ""),
    ],
)
def test_states(states: tuple[str, ...], passed: str) -> None:
    """A state is passed on if it is valid and short, its parts joined; otherwise it is left out."""
    found = read(GOOD, *states)
    assert found
    assert found.state.decode() == passed
