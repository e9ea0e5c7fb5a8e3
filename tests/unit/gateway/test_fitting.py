"""Fitting: what a window leaves for an answer, what goes upstream as the limit, and which routes hold a prompt."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.errors import InvalidRequest
from cadenza.core.records import Plan, Route
from cadenza.core.tokens import OUTPUT_TOKENS_MIN, WINDOW_MARGIN, output_room
from cadenza.gateway.classes import holding
from cadenza.upstreams.base import Ask

TOOLS = {"tools": msgspec.Raw(b"[]")}
WINDOW_TOKENS = 128_000


def route(context_tokens: int = WINDOW_TOKENS, max_output_tokens: int = 131_072, model: str = "large") -> Route:
    return Route("acme", model, context_tokens, max_output_tokens)


def ask(prompt_tokens: int, max_tokens: int | None = None, *, has_tools: bool = True) -> Ask:
    return Ask([], {}, max_tokens, stream=False, tools=TOOLS if has_tools else {}, prompt_tokens=prompt_tokens)


@pytest.mark.parametrize(
    ("prompt_tokens", "room_tokens"),
    [
        (0, 128_000),
        (100, 127_895),
        (100_000, 23_000),
        (121_000, 950),
        (121_889, 17),
        (121_890, 16),
        (121_891, 16),
        (127_984, 16),
        (127_985, 15),
        (128_000, 0),
        (130_000, -2_000),
    ],
)
def test_room_is_the_window_less_prompt_and_margin(prompt_tokens: int, room_tokens: int) -> None:
    """The margin grows with the prompt, and gives way where only the shortest answer is left."""
    assert output_room(route(), prompt_tokens) == room_tokens


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 1_000_000), st.integers(0, 1_100_000))
def test_room_never_passes_the_window(context_tokens: int, prompt_tokens: int) -> None:
    """Prompt and answer fit the window, and a longer prompt never leaves more room."""
    room_tokens = output_room(route(context_tokens), prompt_tokens)
    assert prompt_tokens + room_tokens <= context_tokens
    assert output_room(route(context_tokens), prompt_tokens + 1) <= room_tokens
    if room_tokens > OUTPUT_TOKENS_MIN:
        assert prompt_tokens * (1 + WINDOW_MARGIN) + room_tokens <= context_tokens + 1


@pytest.mark.parametrize(
    ("asked", "max_output_tokens", "limit"),
    [
        (None, 131_072, 23_000),
        (131_072, 131_072, 23_000),
        (131_072, 8_192, 8_192),
        (None, 8_192, 8_192),
        (500, 8_192, 500),
        (500, 200, 200),
    ],
)
def test_with_tools_the_limit_is_fitted_to_the_route(asked: int | None, max_output_tokens: int, limit: int) -> None:
    """The least of what was asked, what the route generates and what its window leaves, and always a number."""
    assert ask(100_000, asked).output_limit(route(max_output_tokens=max_output_tokens)) == limit


@pytest.mark.parametrize(("asked", "limit"), [(None, None), (500, 500), (131_072, 131_072)])
def test_without_tools_the_limit_is_as_it_was_asked(asked: int | None, limit: int | None) -> None:
    """The plain path sends no limit that nobody asked for, and does not look at the window."""
    assert ask(100_000, asked, has_tools=False).output_limit(route()) == limit


def test_each_route_is_fitted_for_itself() -> None:
    """The same ask has a smaller limit on a smaller window."""
    assert ask(1_000).output_limit(route(2_000)) == 950
    assert ask(1_000).output_limit(route(4_000)) == 2_950


SMALL, LARGE, LARGEST = route(2_000, model="small"), route(10_000, model="large"), route(50_000, model="largest")
PLAN = Plan("forte", (SMALL, LARGE, LARGEST))


@pytest.mark.parametrize(
    ("prompt_tokens", "routes"),
    [
        (0, (SMALL, LARGE, LARGEST)),
        (1_984, (SMALL, LARGE, LARGEST)),
        (1_985, (LARGE, LARGEST)),
        (9_984, (LARGE, LARGEST)),
        (9_985, (LARGEST,)),
        (49_984, (LARGEST,)),
    ],
)
def test_routes_that_hold_the_prompt_stay_in_their_order(prompt_tokens: int, routes: tuple[Route, ...]) -> None:
    """A route whose window leaves no room for the shortest answer is passed over."""
    assert holding(PLAN, prompt_tokens) == Plan("forte", routes)


def test_a_larger_route_may_stand_first() -> None:
    """The order of a plan is the operator's: a small window behind a large one is simply left out."""
    assert holding(Plan("forte", (LARGE, SMALL)), 5_000).routes == (LARGE,)


def test_a_prompt_that_no_route_holds_is_refused_with_both_numbers() -> None:
    """The refusal says how long the prompt is and how much the class holds."""
    with pytest.raises(InvalidRequest, match=r"about 49,985 tokens, tools included; forte holds 50,000"):
        holding(PLAN, 49_985)
