"""A webhook whose events are all refused is a problem."""

from collections import Counter

from cadenza.observe.facts import Facts
from cadenza.observe.health import problems
from cadenza.parts.payments.problems import EVENTS, WEBHOOK_FAILS


def test_a_webhook_with_wrong_signatures_only_is_a_problem() -> None:
    """It is none once an event of the same hour was applied: strangers may send others."""
    found = problems(Facts(hour={EVENTS: Counter(bad_signature=3)}))
    assert found == [WEBHOOK_FAILS.problem("3 events of the last hour had a wrong signature.")]
    assert problems(Facts(hour={EVENTS: Counter(bad_signature=3, done=1)})) == []
