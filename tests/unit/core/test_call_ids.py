"""The ids of tool calls: short, unique, and the upstream gets its own back."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.call_ids import UPSTREAM_ID_CHARS_MAX, unwrap_id, wrap_id

OURS = re.compile(r"call_[A-Za-z0-9_-]{24,}")
CHARS_MAX = 40  # OpenAI refuses longer ids
USUAL_IDS = {
    "OpenAI": "call_Zz0f4QmbS7Xw1RkT9aYh2LcD",
    "SGLang": "call_9f8e7d6c5b4a39281706f5e4",
    "vLLM": "chatcmpl-tool-0123456789abcdef0123456789abcdef",
    "llama.cpp": "zK3vT9qLm2XwB7cRfY5sJ8dHgN4pA6uE",
    "Mistral": "aB3dE6gH9",
    "Anthropic": "toolu_01A09q90qw90lq917835lq9",
    "Bedrock": "tooluse_kZJMlvQmRJ6eAyJE5GIl7Q",
    "Gemini": "function-call-9223372036854775807",
    "Kimi": "functions.get_weather:0",
    "DeepSeek": "call_00_Zz0f4QmbS7Xw1RkT9aYh2LcD",
    "Ollama": "call_x8kq2m4z",
    "a UUID": "call_123e4567-e89b-12d3-a456-426614174000",
    "a number": "0",
    "leading zeros": "call_aaaa0000",
}


@pytest.mark.parametrize("upstream_id", ["", *USUAL_IDS.values()], ids=["none", *USUAL_IDS])
def test_ids_of_usual_upstreams_stay_short(upstream_id: str) -> None:
    """They fit into the 40 characters that OpenAI allows, hide the upstream's id, and give it back."""
    ours = wrap_id(upstream_id)
    assert OURS.fullmatch(ours)
    assert len(ours) <= CHARS_MAX
    assert unwrap_id(ours) == (upstream_id or ours)
    rest = upstream_id.removeprefix("call_")
    assert len(rest) < 4 or rest not in ours


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=UPSTREAM_ID_CHARS_MAX))
def test_an_upstream_id_is_restored_from_ours(upstream_id: str) -> None:
    """Any upstream id that is wrapped can be unwrapped."""
    ours = wrap_id(upstream_id)
    assert OURS.fullmatch(ours)
    assert unwrap_id(ours) == upstream_id


@pytest.mark.parametrize("upstream_id", ["", "x" * (UPSTREAM_ID_CHARS_MAX + 1)])
def test_an_id_of_ours_without_an_upstream_id_is_unchanged(upstream_id: str) -> None:
    """A missing or overlong upstream id is not wrapped: the upstream then gets our id back."""
    ours = wrap_id(upstream_id)
    assert OURS.fullmatch(ours)
    assert len(ours) < 64
    assert unwrap_id(ours) == ours


@pytest.mark.parametrize("upstream_id", ["", *USUAL_IDS.values(), "x" * 100])
def test_an_upstream_may_be_a_service_like_this_one(upstream_id: str) -> None:
    """Its ids do not grow, and its own upstream gets back the id that it gave, over any number of services."""
    first = wrap_id(upstream_id)
    assert wrap_id(wrap_id(first)) == first
    assert unwrap_id(unwrap_id(first)) == (upstream_id or first)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40) | st.text("abcXYZ019_-=+/é", max_size=60).map("call_{}".format))
def test_foreign_ids_are_unchanged(foreign: str) -> None:
    """The upstream gets an id that was not made here as it is, whatever its text."""
    assert unwrap_id(foreign) == foreign


@settings(max_examples=100, deadline=None)
@given(st.text("abc019", min_size=1, max_size=12), st.integers(0), st.sampled_from("abc019"))
def test_a_damaged_id_counts_as_foreign(upstream_id: str, place: int, other: str) -> None:
    """An id of ours with one changed character is not unwrapped to another upstream id."""
    ours = wrap_id(upstream_id)
    place = len("call_") + place % (len(ours) - len("call_"))
    damaged = ours[:place] + other + ours[place + 1 :]
    assert unwrap_id(damaged) in (damaged, upstream_id)


def test_ids_are_unique() -> None:
    """No two calls get the same id, also if the upstream gave them none, or counts them anew in each reply."""
    for upstream_id in ("", "0", "call_1", "functions.look:0"):
        assert len({wrap_id(upstream_id) for _ in range(1000)}) == 1000
