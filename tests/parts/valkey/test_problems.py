"""A shared state that is lost is a problem, and one that is not there is none."""

from cadenza.observe.facts import Facts
from cadenza.observe.health import problems
from cadenza.observe.samples import Samples
from cadenza.observe.worker_metrics import Family
from cadenza.parts.valkey.problems import SHARED_STATE_FAILS


def state(*samples: float) -> Facts:
    name = "cadenza_shared_state_up"
    return Facts(samples=Samples([Family(name, "gauge", "", [(name, (), value) for value in samples])]))


def test_a_lost_shared_state_is_a_problem() -> None:
    """At 0 it is one; while it is up, and without any sample, nothing is said."""
    assert problems(state(0.0)) == [SHARED_STATE_FAILS.problem()]
    assert problems(state(1.0)) == problems(state()) == []
