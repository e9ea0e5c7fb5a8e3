"""The query that a conversation makes."""

import re
import time
import unicodedata
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.parts.grounding.search.intent.query import make_query
from cadenza.parts.grounding.search.words import WORD

TODAY = date(2026, 11, 16)
PAGE = "A paragraph of a page that somebody pasted, about Diabetes and other things. " * 200
ODD_TEXT = st.text(st.sampled_from("ab -+!:\"'“”site:OR?.,\n\x00()[]`*|~^<>今日2026の，。"), max_size=400)

CONVERSATIONS = [
    (["can you please tell me the price of gold today?"], "price of gold today"),
    (["search the web for recipes with leftover halloumi"], "recipes with leftover halloumi"),
    (["do a quick web search: is the Fairphone 6 sold in Canada"], "is the Fairphone 6 sold in Canada"),
    (["what does wikipedia say about the Treaty of Tordesillas"], "Treaty of Tordesillas"),
    (["Hi! I hope you are well. Could you look up when the Louvre opens? Thanks!"], "when the Louvre opens"),
    (["weather in Reykjavik"], "weather in Reykjavik"),
    (["who is the CEO of Intel"], "who is the CEO of Intel"),
    (['who said "the medium is the message"?'], 'who said "the medium is the message"'),
    (["who said “the medium is the message”?"], 'who said "the medium is the message"'),
    (["which heat pumps are subsidised this year?"], "which heat pumps are subsidised 2026"),
    (["concerts in Hamburg this month"], "concerts in Hamburg November 2026"),
    (["pros -evil site:example.com !g AND +more"], "pros evil site example.com g and more"),
    (['an "unbalanced quote'], "unbalanced quote"),
    (["https://docs.python.org/3/whatsnew what changed for asyncio?"], "what changed for asyncio"),
    (["https://example.com/a"], "example.com a"),
    ([f"{PAGE}\n\nIs any of this still true in 2026?"], "Is any of this still true in 2026"),
    ([f"Is Ozempic covered by Medicare?\n\n{PAGE}"], "Is Ozempic covered by Medicare"),
    (["I upgraded:\n```\nError: x\n```\nis this a known bug in vite 8?"], "is this a known bug in vite 8"),
    (["My landlord in Berlin wants more rent. What is the Mietspiegel?"], "Mietspiegel Berlin"),
    (["Such bitte im Internet nach einem Ramen-Restaurant in Köln"], "einem Ramen-Restaurant in Köln"),
    (["Cherche sur internet les horaires du musée d'Orsay"], "les horaires du musée d'Orsay"),
    (["Busca en internet cuánto cuesta el metro en Madrid"], "cuánto cuesta el metro en Madrid"),
    (["帮我上网查一下杭州到上海的高铁票价"], "杭州到上海的高铁票价"),
    (["ネットで調べて：新宿から成田空港までの終電は何時？"], "新宿から成田空港までの終電は何時"),
    (["What's the weather in Oslo today?", "and tomorrow?"], "weather in Oslo tomorrow"),
    (["How much does Netflix cost in France?", "what about Spain"], "How much does Netflix cost in Spain"),
    (["who is the CEO of Nestlé", "and of Unilever?"], "who is the CEO of Unilever"),
    (["who is the CEO of Nestlé", "and of Unilever?", "and Danone?"], "who is the CEO of Danone"),
    (["How many cars were sold in Norway in 2024?", "and in 2025?"], "How many cars were sold in Norway in 2025"),
    (["Tell me about the Rivian R2", "what about its price?"], "price Rivian R2"),
    (["Tell me about Rivian", "who is its CEO"], "who is CEO Rivian"),
    (["What's the score of the Arsenal game?", "who scored?"], "who scored Arsenal"),
    (["What's the tallest building in Africa?", "Browse the web and try again."], "tallest building in Africa"),
    (["Does coffee keep you awake?", "Give me a citation for that, with a link"], "Does coffee keep you awake"),
    (["Tell me about Oslo", "Is the new MacBook Air worth it?"], "Is the new MacBook Air worth it"),
    (["please"], "please"),
    (["can you search the web?"], "can you search the web"),
    (["???"], ""),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "query"), CONVERSATIONS)
def test_a_conversation_makes_a_query(asked: list[str], query: str) -> None:
    """The query has the question without filler, and the subject of a follow-up."""
    assert make_query(asked, TODAY) == query


def test_no_messages_make_no_query() -> None:
    """Without a message there is nothing to ask."""
    assert make_query([], TODAY) == ""


def test_a_long_question_is_cut_at_a_word() -> None:
    """A query has at most 24 words and 200 characters, and ends with a whole word."""
    query = make_query(["why " + "word " * 100], TODAY)
    assert len(query.split()) == 24
    assert set(query.split()) == {"why", "word"}
    assert len(make_query(["今" * 1000], TODAY)) == 200


@given(st.lists(ODD_TEXT | st.text(max_size=300), min_size=1, max_size=3))
def test_every_query_is_safe_for_an_engine(asked: list[str]) -> None:
    """A query is one line within its bounds, with balanced quotes and no operators, and empty only without words."""
    query = make_query(asked, TODAY)
    assert len(query.encode().decode()) <= 200
    assert len(query.split()) <= 24
    assert query == " ".join(query.split())
    assert not any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in query)
    assert query.count('"') % 2 == 0
    assert not any(word.startswith(("-", "+", "!", ":")) or word in ("OR", "AND", "NOT") for word in query.split())
    assert not re.search(r"[A-Za-z]:\S", query)
    assert query or not WORD.search(asked[-1])


@pytest.mark.parametrize(
    "unit", ["a", " ", '"', "and ", "what about ", "Ab Cd ", "please ", "http://", "``` ", "今", "? "]
)
def test_a_megabyte_costs_little(unit: str) -> None:
    """The cost of a query does not depend on how long and awkward a message is."""
    message = unit * (1_000_000 // len(unit))
    start_s = time.process_time()
    make_query([message, message], TODAY)
    assert time.process_time() - start_s < 0.5
