"""The sink of a continued reply: one text, one usage, and the backpressure of the sink behind it."""

import pytest

from cadenza.core.records import Usage
from cadenza.routing.continuation import ContinuedSink
from cadenza.upstreams.base import Collector, Piece

BEGUN_TOKENS = 4
FINISH = Piece(finish_reason="stop")


def counted(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> Piece:
    return Piece(usage=Usage(prompt_tokens, completion_tokens, cached_tokens))


def usages(*parts: list[Piece]) -> list[Usage]:
    """What the sink is told of a reply whose routes sent these pieces; each route said BEGUN_TOKENS before the next."""
    collector = Collector()
    continued = ContinuedSink(collector)
    for number, pieces in enumerate(parts):
        if number:
            continued.begun_tokens = number * BEGUN_TOKENS
        for piece in pieces:
            continued.take(piece)
    return [piece.usage for piece in collector.pieces if piece.usage]


def test_a_continued_reply_has_one_prompt_and_one_answer() -> None:
    """The text before the last route is subtracted from its prompt and added to its output, as an estimate."""
    last = [Piece(" there was a fox."), FINISH, counted(70, 9, cached_tokens=60)]
    assert usages([Piece("Once")], last) == [Usage(70 - BEGUN_TOKENS, 9 + BEGUN_TOKENS, 60, estimated=True)]


def test_the_text_of_all_routes_before_the_last_is_counted() -> None:
    """After two continuations the text of the first two routes is output, not prompt."""
    last = [Piece(" three"), FINISH, counted(60, 5)]
    assert usages([Piece("One")], [Piece(" two")], last) == [
        Usage(60 - 2 * BEGUN_TOKENS, 5 + 2 * BEGUN_TOKENS, estimated=True)
    ]


def test_the_first_routes_count_of_the_prompt_is_kept() -> None:
    """If the first route had counted the prompt, its count stands, and no more of it is cached than it has."""
    last = [Piece(" there was"), FINISH, counted(70, 9, cached_tokens=60)]
    assert usages([Piece("Once"), counted(40, 3)], last) == [Usage(40, 9 + BEGUN_TOKENS, 40, estimated=True)]


def test_a_prompt_is_never_negative() -> None:
    """A last route that counts fewer prompt tokens than were said before it counts as a prompt of zero."""
    assert usages([Piece("Once")], [FINISH, counted(2, 9, 1)]) == [Usage(0, 9 + BEGUN_TOKENS, estimated=True)]


@pytest.mark.parametrize("is_continued", [True, False])
def test_counts_before_the_finish_are_withheld(is_continued: bool) -> None:
    """The usage of a part must not be taken for that of the whole reply."""
    parts = [[Piece("One"), counted(40, 1)]] + [[Piece(" two"), counted(45, 1)]] * is_continued
    assert usages(*parts) == []


def test_after_a_route_that_said_nothing_the_counts_are_the_next_routes_own() -> None:
    """A continuation after no text is an ordinary reply."""
    collector = Collector()
    continued = ContinuedSink(collector)
    continued.take(Piece(has_begun=True))
    continued.begun_tokens = 0
    for piece in (Piece("All."), FINISH, counted(44, 2)):
        continued.take(piece)
    assert collector.pieces[-1].usage == Usage(44, 2)
