"""Plain text from markup, and queries that every engine takes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.grounding.search.engines.web import fit_query, plain_text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("plain", "plain"),
        ("a <b>bold</b> word", "a bold word"),
        ("caf&eacute; &amp; more &#8211; x", "café & more – x"),
        ("<a href='x' title='>'>link</a>", "'>link"),
        ("&lt;script&gt;alert(1)&lt;/script&gt;safe", "safe"),
        ("<style>p{}</style>x<script src=y>", "x"),
        ("<!-- hidden -->shown<!-- open", "shown"),
        ("cut <img src=", "cut"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("tab\tline\nbreak\u2028sep\u00a0nbsp", "tab line break sep nbsp"),
        ("nul\x00 bidi\u202e tag\U000e0041 half\ud800", "nul bidi tag half"),
        ("می\u200cخواهم 👩\u200d🚀", "می\u200cخواهم 👩\u200d🚀"),
        ("", ""),
    ],
)
def test_plain_text(markup: str, text: str) -> None:
    """Tags, comments, scripts, entities and invisible characters go; the text stays."""
    assert plain_text(markup, 200) == text


def test_long_text_is_cut_at_a_word() -> None:
    """A cut text ends with a whole word and a mark, within the length."""
    assert plain_text("one two three four", 10) == "one two…"
    assert plain_text("a" * 30, 10) == "a" * 9 + "…"
    assert plain_text("one two", 7) == "one two"


@pytest.mark.parametrize("part", ["<!--", "<script", "<a ", "&", "<", "&lt;"])
def test_hostile_markup_takes_no_time(part: str) -> None:
    """Markup that is made to be slow is bounded before it is searched."""
    hostile = part * 250_000
    began_s = time.process_time()
    plain_text(hostile, 600)
    assert time.process_time() - began_s < 1.0


@given(st.text(max_size=3000), st.integers(2, 600))
def test_plain_text_is_always_short_and_printable(markup: str, characters_max: int) -> None:
    """Whatever comes in, what comes out is within its length and can be encoded."""
    text = plain_text(markup, characters_max)
    assert len(text) <= characters_max
    text.encode()
    assert "\n" not in text


@given(st.text(max_size=3000))
def test_query_is_always_within_the_limits(query: str) -> None:
    """A query has at most 50 words and 400 characters, in one line that can be encoded."""
    fitted = fit_query(query)
    assert len(fitted) <= 400
    assert len(fitted.split()) <= 50
    assert fitted == " ".join(fitted.split())
    fitted.encode()


def test_long_query_keeps_whole_words() -> None:
    """A query is cut between words; a single long word is cut itself."""
    assert fit_query("word " * 100) == " ".join(["word"] * 50)
    assert fit_query("wordsof11ch " * 49).split()[-1] == "wordsof11ch"
    assert fit_query("x" * 1000) == "x" * 400
