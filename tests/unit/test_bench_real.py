"""The mix of a hosted service, what is due for it, and the rows of its goals."""

import itertools
from collections import Counter, defaultdict

import pytest
from bench.client import Reply
from bench.figures import Line, Results, Section
from bench.goals import goals
from bench.mix import (
    ACCOUNTS,
    AGENT_BYTES,
    LITELLM,
    NUMBER,
    OWN,
    SHAPES,
    TENSORZERO,
    TITLE,
    TURN_BYTES,
    Ask,
    Kind,
    bodies,
    mix,
)
from bench.money.script import price
from bench.real import Seen, off_nano
from bench.real_upstream import Supply, pieces
from bench.workload import MARK, read_shape


@pytest.fixture(scope="module")
def asked() -> list[Ask]:
    """Enough requests to judge shares by."""
    return mix(1, seconds=1_000, per_s=20)


def test_mix_repeats() -> None:
    """A seed makes the same requests again, and another seed others."""
    assert mix(1, 10, 20) == mix(1, 10, 20) != mix(2, 10, 20)


def test_shares(asked: list[Ask]) -> None:
    """Kinds, keys, clients that leave and failures have their shares, at the rate that was asked for."""
    kinds = Counter(ask.kind for ask in asked)
    assert len(asked) == pytest.approx(20_000, rel=0.03)
    assert [kinds[kind] / len(asked) for kind in Kind] == pytest.approx([0.6, 0.3, 0.1], abs=0.02)
    streams = [ask for ask in asked if ask.kind != Kind.PLAIN]
    assert sum(ask.is_idempotent for ask in asked) / len(asked) == pytest.approx(0.10, abs=0.01)
    assert sum(ask.fails for ask in asked) / len(asked) == pytest.approx(0.01, abs=0.003)
    assert sum(bool(ask.leaves_after) for ask in streams) / len(streams) == pytest.approx(0.05, abs=0.01)
    assert not any(ask.leaves_after for ask in asked if ask.kind == Kind.PLAIN)


def test_zipf(asked: list[Ask]) -> None:
    """The first account has ten times the requests of the tenth, and a hundred times those of the hundredth."""
    of_account = Counter(ask.account for ask in asked)
    assert of_account[0] / of_account[9] == pytest.approx(10, rel=0.25)
    assert of_account[0] / of_account[99] == pytest.approx(100, rel=0.5)
    assert ACCOUNTS / 5 < len(of_account) < ACCOUNTS


def test_conversations_grow(asked: list[Ask]) -> None:
    """Each turn of a conversation is longer than the one before, and a new one begins short."""
    turns = defaultdict[int, list[int]](list)
    for ask in asked:
        if ask.kind == Kind.AGENT:
            turns[ask.conversation].append(ask.body_bytes)
    for conversation, sizes in turns.items():
        assert AGENT_BYTES[0] <= sizes[0] <= sizes[-1] <= AGENT_BYTES[1]
        assert all(TURN_BYTES[0] <= after - before <= TURN_BYTES[1] for before, after in itertools.pairwise(sizes))
        assert sizes[0] == AGENT_BYTES[0] or conversation % 1000 == 0, "only the first that is seen may begin late"


def test_bodies() -> None:
    """A body has its length, the number of its request and the tag of its reply, where the upstream finds them."""
    asks = mix(3, seconds=2, per_s=20)
    for ask, body in zip(asks, bodies(asks), strict=True):
        found = NUMBER.match(body, body.rfind(b"[real "))
        assert found
        assert (int(found[1]), read_shape(body)) == (ask.number, ask.shape)
        assert ask.kind != Kind.AGENT or len(body) == ask.body_bytes


@pytest.mark.parametrize("kind", [Kind.AGENT, Kind.CHAT])
def test_pieces(kind: Kind) -> None:
    """A stream has a mark in each of its chunks, and an agent's has the arguments of two calls."""
    found = pieces(SHAPES[kind])
    assert [piece.count(MARK) for piece in found] == [1] * SHAPES[kind].chunks
    stream = b"".join(found)
    assert [stream.count(b'"id":"call_%d"' % index) for index in (0, 1)] == [kind == Kind.AGENT] * 2


@pytest.mark.parametrize(
    ("supply", "charged_nano", "off"),
    [
        (None, 0, 0),
        (None, 7, 7),
        (Supply(1, 100, 300), price(100, 300), 0),
        (Supply(1, 100, 300), 2 * price(100, 300), price(100, 300)),
        (Supply(1, 100, 300), 0, price(100, 300)),
        (Supply(1, 100, 20, is_whole=False), price(90, 10), 0),
        (Supply(1, 100, 20, is_whole=False), price(90, 20), 0),
        (Supply(1, 100, 20, is_whole=False), price(90, 9), price(0, 1)),
        (Supply(1, 100, 20, is_whole=False), price(90, 21), price(0, 1)),
    ],
)
def test_due(supply: Supply | None, charged_nano: int, off: int) -> None:
    """A whole reply costs what the upstream counted; one that was left, its prompt and what was read, or sent."""
    [ask] = mix(1, 1, 20)[:1]
    seen = Seen(ask, Reply(200, [0.1] * 10, 1.0, has_terminator=False))
    assert off_nano(seen, supply, charged_nano, {ask.number: 90}) == off


def test_goals() -> None:
    """Each set-up of Cadenza has its rows, whose limits come from TensorZero and LiteLLM."""
    own = {"cpu_us": 5_000.0, "first_p99_ms": 6.0, "mischarged": 0.0}
    lines = [Line(subject=name, figures=own) for name in OWN]
    lines += [
        Line(subject=TENSORZERO, figures={"cpu_us": 10_000.0}),
        Line(subject=LITELLM, figures={"cpu_us": 80_000.0}),
    ]
    section = Section(title=TITLE, note="", lines=lines)
    results = Results(date="", is_quick=True, machine={}, versions={}, beside=[section])
    found = [(goal.limit, goal.verdict) for goal in goals(results)]
    assert found == [(6_000, "met"), (4_000, "not met"), (5, "not met"), (0, "met")] * len(OWN)
