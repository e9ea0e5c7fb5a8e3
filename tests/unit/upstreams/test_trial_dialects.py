"""The dialect that fits what a trial has seen."""

import pytest

from cadenza.upstreams.dialects import DIALECTS
from cadenza.upstreams.trial.session import Needs, better_dialect, misfits

FOR_THEIR_HOSTS = {"openai", "azure", "openrouter"}


@pytest.mark.parametrize("name", DIALECTS)
def test_nothing_needed(name: str) -> None:
    """Without needs every dialect fits, and none is better than another."""
    assert misfits(DIALECTS[name], Needs()) == 0
    assert better_dialect(name, Needs()) is None


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (Needs(refused_fields=frozenset({"seed", "stream_options"})), "mistral"),
        (Needs(refused_fields=frozenset({"frequency_penalty", "presence_penalty", "seed"})), "gemini"),
        (Needs(refused_fields=frozenset({"parallel_tool_calls"})), None),
        (Needs(refuses_call_id=True), "mistral"),
        (Needs(null_content="empty", refuses_reasoning=True), "mistral"),
        (Needs(ignores_named_choice=True), "llamacpp"),
    ],
    ids=lambda value: "" if isinstance(value, Needs) else str(value),
)
def test_better_dialect(needs: Needs, expected: str | None) -> None:
    """The dialect that meets most of the needs is named, and among equals the one most like `plain`."""
    assert better_dialect("plain", needs) == expected


def test_dialects_of_one_host_are_never_advised() -> None:
    """A dialect that adds fields, headers or paths of its own host is not advised for another host."""
    needs = [Needs(refuses_reasoning=True), Needs(null_content="omit"), Needs(ignores_named_choice=True)]
    assert FOR_THEIR_HOSTS.isdisjoint({better_dialect("plain", one) for one in needs})


def test_current_dialect_is_kept_among_equals() -> None:
    """A dialect that already meets the needs is not replaced by another that meets them too."""
    assert better_dialect("gemini", Needs(null_content="omit")) is None
