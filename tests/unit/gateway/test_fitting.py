"""Fitting: what a window leaves for an answer, what goes upstream as the limit, and which routes hold a prompt."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.errors import InvalidRequest
from cadenza.core.records import Plan, Route
from cadenza.core.tokens import OUTPUT_TOKENS_MIN, WINDOW_MARGIN, is_ample, output_room
from cadenza.routing.catalogue import routes_that_fit
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
PLAN = Plan.of("forte", (SMALL, LARGE, LARGEST))


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
    assert routes_that_fit(PLAN, prompt_tokens) == Plan.of("forte", routes)


def test_a_larger_route_may_stand_first() -> None:
    """The order of a plan is the operator's: a small window behind a large one is simply left out."""
    assert routes_that_fit(Plan.of("forte", (LARGE, SMALL)), 5_000).routes == (LARGE,)


def test_a_prompt_that_no_route_holds_is_refused_with_both_numbers() -> None:
    """The refusal says how long the prompt is and how much the class holds."""
    with pytest.raises(InvalidRequest, match=r"about 49,985 tokens, tools included; forte holds 50,000"):
        routes_that_fit(PLAN, 49_985)


routes = st.builds(route, st.integers(1, 20_000), st.integers(1, 20_000))


@settings(max_examples=300, deadline=None)
@given(st.lists(routes, min_size=1, max_size=3), st.integers(1, 8_192), st.data())
def test_where_there_is_ample_room_the_count_changes_nothing(
    routes: list[Route], prompt_bytes: int, data: st.DataObject
) -> None:
    """With room for every byte, any count of the prompt leaves the same routes and the same limit upstream."""
    plan, asked = Plan.of("forte", tuple(routes)), data.draw(st.one_of(st.none(), st.integers(1, 20_000)))
    has_tools, prompt_tokens = data.draw(st.booleans()), data.draw(st.integers(0, prompt_bytes))
    fitted_tokens = (asked or 131_072) if has_tools else OUTPUT_TOKENS_MIN
    if is_ample(plan, prompt_bytes, fitted_tokens):
        for one in plan.routes:
            by_bytes, by_count = (ask(size, asked, has_tools=has_tools) for size in (prompt_bytes, prompt_tokens))
            assert by_bytes.output_limit(one) == by_count.output_limit(one)
            assert output_room(one, prompt_tokens) >= min(OUTPUT_TOKENS_MIN, one.max_output_tokens)


@pytest.mark.parametrize(
    ("context_tokens", "output_tokens", "ample"),
    [
        (1_066, 16, True),
        (1_065, 16, True),
        (1_016, 16, True),
        (1_015, 16, False),
        (1_150, 100, True),
        (1_149, 100, False),
    ],
)
def test_room_is_ample_up_to_the_last_token(context_tokens: int, output_tokens: int, ample: bool) -> None:
    """A prompt of a thousand bytes needs a thousand tokens, a margin but for the shortest answer, and the answer."""
    plan = Plan.of("forte", (LARGE, route(context_tokens)))
    assert is_ample(plan, 1_000, output_tokens) is ample


def test_no_more_room_is_needed_than_a_route_generates() -> None:
    """An answer is never longer than its route makes it, whatever was asked."""
    assert is_ample(Plan.of("forte", (route(1_150, 100),)), 1_000, 131_072)
