"""Fitting: what a window leaves for an answer, which limit goes upstream, and which routes fit a prompt."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import InvalidRequest
from cadenza.core.records import OUTPUT_TOKENS_MAX, Plan, Route
from cadenza.core.tokens import OUTPUT_TOKENS_MIN, WINDOW_MARGIN_PARTS, output_room
from cadenza.routing.catalogue import has_ample_room, routes_that_fit
from cadenza.upstreams.base import Ask
from tests.unit.gateway.prompts import prompt_of

WINDOW_TOKENS = 128_000


def route(context_tokens: int = WINDOW_TOKENS, max_output_tokens: int = 131_072, model: str = "large") -> Route:
    return Route("acme", model, context_tokens, max_output_tokens)


def ask(prompt_tokens: int, max_tokens: int | None = None) -> Ask:
    return Ask([], {}, max_tokens, stream=False, prompt_tokens=prompt_tokens)


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
def test_the_room_is_the_window_less_prompt_and_margin(prompt_tokens: int, room_tokens: int) -> None:
    """The margin grows with the prompt, and is given up where only the shortest answer fits."""
    assert output_room(route(), prompt_tokens) == room_tokens


@given(st.integers(1, 1_000_000), st.integers(0, 1_100_000))
def test_the_room_never_exceeds_the_window(context_tokens: int, prompt_tokens: int) -> None:
    """Prompt and answer fit in the window, and a longer prompt never leaves more room."""
    room_tokens = output_room(route(context_tokens), prompt_tokens)
    assert prompt_tokens + room_tokens <= context_tokens
    assert output_room(route(context_tokens), prompt_tokens + 1) <= room_tokens
    if room_tokens > OUTPUT_TOKENS_MIN:
        assert prompt_tokens * (1 + 1 / WINDOW_MARGIN_PARTS) + room_tokens <= context_tokens + 1


@given(st.lists(st.tuples(st.integers(1, 1_000_000), st.integers(1, 131_072)), min_size=1), st.integers(32, 16_384))
def test_a_prompt_of_half_the_spare_tokens_fits_every_route(windows: list[tuple[int, int]], size_bytes: int) -> None:
    """Then every route has room for its longest answer, and nothing need be counted."""
    plan = Plan.of("forte", tuple(Route("acme", "any", context, most) for context, most in windows))
    if 2 * size_bytes <= plan.spare_tokens:
        assert has_ample_room(plan, size_bytes, OUTPUT_TOKENS_MAX)


@pytest.mark.parametrize(
    ("asked", "max_output_tokens", "limit"),
    [
        (None, 131_072, 23_000),
        (131_072, 131_072, 23_000),
        (131_072, 8_192, 8_192),
        (None, 23_001, 23_000),
        (None, 23_000, None),
        (None, 8_192, None),
        (500, 8_192, 500),
        (500, 200, 200),
    ],
)
def test_the_limit_is_fitted_to_the_route(asked: int | None, max_output_tokens: int, limit: int | None) -> None:
    """It is the least of `max_tokens`, the route's longest answer and the room; none if the longest answer fits."""
    assert ask(100_000, asked).output_limit(route(max_output_tokens=max_output_tokens)) == limit


SMALL, LARGE, LARGEST = route(2_000, model="small"), route(10_000, model="large"), route(50_000, model="largest")


routes = st.builds(route, st.integers(1, 20_000), st.integers(OUTPUT_TOKENS_MIN, 20_000))


@given(st.lists(routes, min_size=1, max_size=3), st.integers(60, 8_192), st.data())
def test_a_prompt_that_was_not_counted_is_fitted_as_if_it_were(
    routes: list[Route], prompt_bytes: int, data: st.DataObject
) -> None:
    """Where every byte has room, no count is made, and any count would give the same routes and limits."""
    plan, asked = Plan.of("forte", tuple(routes)), data.draw(st.one_of(st.none(), st.integers(1, 20_000)))
    prompt_tokens = data.draw(st.integers(0, prompt_bytes))
    prompt = prompt_of(8, prompt_bytes)
    try:
        fitted = asyncio.run(routes_that_fit(plan, prompt, asked or 131_072))
    except InvalidRequest:
        assert prompt.exact
        return
    if not prompt.exact:
        assert fitted == plan
        for one in plan.routes:
            assert output_room(one, prompt_tokens) >= OUTPUT_TOKENS_MIN
            by_bytes, by_count = (ask(size, asked) for size in (prompt_bytes, prompt_tokens))
            assert by_bytes.output_limit(one) == by_count.output_limit(one)


@pytest.mark.parametrize(
    ("context_tokens", "output_tokens", "is_counted"),
    [
        (1_066, 16, False),
        (1_065, 16, False),
        (1_016, 16, False),
        (1_015, 16, True),
        (1_150, 100, False),
        (1_149, 100, True),
    ],
)
async def test_a_prompt_is_counted_where_its_bytes_may_not_fit(
    context_tokens: int, output_tokens: int, is_counted: bool
) -> None:
    """A thousand bytes need a thousand tokens and the answer, with a margin unless it is the shortest answer."""
    prompt = prompt_of(8, 1_000)
    await routes_that_fit(Plan.of("forte", (LARGE, route(context_tokens))), prompt, output_tokens)
    assert bool(prompt.exact) is is_counted
