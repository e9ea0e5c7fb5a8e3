"""Promotions through the gate, over SQLite and Postgres."""

from typing import Any

import msgspec
import pytest

from cadenza.control.class_changes import PromotionOrder, get_situation, list_history, list_versions, promote
from cadenza.core.classes import GateLimits
from cadenza.core.errors import ControlError
from cadenza.core.records import Operator
from cadenza.parts.evaluation import verdict_rows as verdicts
from cadenza.parts.evaluation.suite import load_suite
from cadenza.parts.evaluation.verdict import Verdict
from cadenza.parts.evaluation.verdict_rows import EvaluationRecord
from cadenza.store.store import Store
from cadenza.store.tables import epochs
from tests.parts.evaluation.verdicts import make_side, make_verdict
from tests.store.class_changes import NEW, NOW_MS, RULES, VERSION, seeded

ANN = Operator("ann")
DIGEST = load_suite(None).digest
DAY_MS = 86_400_000
ORDER = PromotionOrder(candidate=NEW)

__all__ = ["seeded"]


async def add_verdict(store: Store, verdict: Verdict | None = None, **fields: Any) -> None:
    values: dict[str, Any] = {
        "id": f"verdict-{len(await verdicts.list_newest(store, 'forte', 100)) + 1}",
        "class_id": "forte",
        "state": "finished",
        "created_at": NOW_MS - DAY_MS,
        "ended_at": NOW_MS - DAY_MS,
        "actor": ANN.name,
        "incumbent": 1,
        "candidate": "acme/huge",
        "candidate_digest": VERSION.with_candidate(NEW).digest,
        "suite": "starter",
        "suite_digest": DIGEST,
        "runs": 3,
        "result": verdict or make_verdict(),
    }
    record = EvaluationRecord(**values | fields)
    await store.transact(lambda tx: verdicts.add(tx, record))


async def test_a_candidate_that_passes_is_promoted(seeded: Store) -> None:
    """The version has the candidate, the verdict and who did it; every process is told, and the history says it."""
    await add_verdict(seeded)
    epoch = await epochs.current(seeded, epochs.CLASSES)
    state = await promote(seeded, "forte", RULES, ORDER, ANN, NOW_MS)
    assert state.version.number == 2
    assert (state.version.routes, state.version.verdict_id, state.version.actor) == ((NEW,), "verdict-1", ANN.name)
    assert (state.previous, state.version.character) == (1, VERSION.character)
    assert await epochs.current(seeded, epochs.CLASSES) == epoch + 1
    newest, first = await list_history(seeded, "forte")
    assert newest.detail == "version 2 instead of 1: acme/huge; verdict verdict-1"
    assert (newest.event, newest.actor, first.detail) == ("class.promote", ANN.name, "version 1: acme/large")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"candidate": "acme/other"}, r"no verdict on acme/huge for 'forte'\. There are verdicts for acme/other\."),
        ({"incumbent": 7}, "against version 7 of 'forte', and version 1 is served"),
        ({"suite_digest": b"x" * 32, "suite": "mine"}, "by the suite 'mine' or by another state of it"),
        ({"suite_digest": b"x" * 32}, "the gate wants 'starter' as it is now"),
        ({"candidate_digest": b"x" * 32}, "settings of the route acme/huge have changed"),
        ({"result": None, "state": "running"}, "verdict-1 of acme/huge has not ended"),
        ({"ended_at": NOW_MS - 20 * DAY_MS}, "is 20.0 days old, 6.0 more than the gate allows"),
    ],
)
async def test_another_verdict_is_not_enough(seeded: Store, fields: dict[str, Any], expected: str) -> None:
    """A verdict on something else, or an old one, is refused with what differs and the command to run."""
    await add_verdict(seeded, **fields)
    with pytest.raises(ControlError, match=expected) as caught:
        await promote(seeded, "forte", RULES, ORDER, ANN, NOW_MS)
    assert "Run 'cadenza class evaluate forte --candidate acme/huge'." in str(caught.value)
    assert len(await list_versions(seeded, "forte")) == 1


async def test_the_gate_stops_a_candidate_with_every_reason(seeded: Store) -> None:
    """Each limit that is not kept is a line of the refusal, and nothing is recorded."""
    await add_verdict(seeded, make_verdict(make_side(score=0.5, cost_nano=300.0)))
    rules = msgspec.structs.replace(RULES, gate=GateLimits(min_score=0.8, max_cost_ratio=1.0))
    with pytest.raises(ControlError) as caught:
        await promote(seeded, "forte", rules, ORDER, ANN, NOW_MS)
    assert [line.strip().partition(":")[0] for line in str(caught.value).splitlines()[1:]] == [
        "min_score",
        "max_cost_ratio",
    ]
    assert "min_score" in (await get_situation(seeded, "forte", rules)).next_step


async def test_a_verdict_by_another_suite_is_not_said_to_pass_the_gate(seeded: Store) -> None:
    """The next step is an evaluation with the suite that the gate wants; after it, the promotion."""
    await add_verdict(seeded, suite="mine.jsonl")
    assert "the gate wants 'starter'" in (await get_situation(seeded, "forte", RULES)).next_step
    await add_verdict(seeded, created_at=NOW_MS, incumbent=7)
    assert "evaluate forte --candidate PROVIDER/MODEL" in (await get_situation(seeded, "forte", RULES)).next_step
    await add_verdict(seeded, created_at=NOW_MS + 1)
    assert "keeps the limits of the gate" in (await get_situation(seeded, "forte", RULES)).next_step
