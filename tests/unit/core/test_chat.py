"""The reply types of the API as JSON: the completion, its usage, its id and the list of models."""

import re

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.chat import new_completion_id, usage_object
from cadenza.core.records import Usage

COUNTS = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 0},
}
NOW_MS = 1_800_000_000_000

times_ms = st.integers(NOW_MS, NOW_MS + 500 * 365 * 86_400_000)


def test_completion_details_are_shown_only_if_there_are_any() -> None:
    """Details are shown if the upstream gave them, and left out otherwise."""
    with_details = Usage(9, 3, completion_details={"reasoning_tokens": 2})
    assert msgspec.to_builtins(usage_object(with_details)) == {
        **COUNTS,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert msgspec.to_builtins(usage_object(Usage(9, 3, completion_details={}))) == COUNTS


def test_completion_ids_are_url_safe_and_unique() -> None:
    """`chatcmpl-` and at least 24 url-safe characters, never the same twice, even within one millisecond."""
    ids = {new_completion_id(NOW_MS) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"chatcmpl-[A-Za-z0-9_-]{24,}", one) for one in ids)


@given(times_ms, times_ms)
def test_completion_ids_sort_by_time(one_ms: int, other_ms: int) -> None:
    """As text, a later id comes after an earlier one, for centuries, and all have one length."""
    earlier, later = sorted((one_ms, other_ms))
    if earlier < later:
        assert new_completion_id(earlier) < new_completion_id(later)
    assert len(new_completion_id(earlier)) == len(new_completion_id(later))


def test_completion_ids_cannot_be_guessed() -> None:
    """Within one millisecond 24 characters vary over all of the 64 that are url-safe, which is 144 bits."""
    ids = [new_completion_id(NOW_MS) for _ in range(2000)]
    differing = [len(set(characters)) for characters in zip(*ids, strict=True) if len(set(characters)) > 1]
    assert differing == [64] * 24
