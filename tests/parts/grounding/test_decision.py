"""Whether a message needs the web."""

import time
from datetime import date
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.parts.grounding.search.intent.decision import Decision, decide
from cadenza.parts.grounding.search.intent.question import find_question
from cadenza.parts.grounding.search.intent.scorer import explain, read_weights
from tests.parts.grounding.search_decision import (
    HELD_OUT,
    TODAY,
    files_to_learn,
    learn,
    precision_and_recall,
    read_examples,
    read_messages,
)

DOCS = Path(__file__).parents[3] / "docs" / "parts" / "grounding" / "when-it-searches.md"
PAGE = "The latest price of the share rose today, the company said on Tuesday. " * 300
FOUR = ("https://a.example/", "https://b.example/", "https://c.example/", "https://d.example/")
ODD_TEXT = st.text(st.sampled_from("ab A1.,:;?!-'\"`>[](){}<\n/@www.http今日さ%+=2026"), max_size=300)


def test_the_docs_say_how_good_the_decision_is() -> None:
    """Precision and recall on the messages that nobody tuned on are those that the docs say."""
    rows = read_messages(HELD_OUT)
    precision, recall = precision_and_recall((decide(row.asked, TODAY).needs_web, row.needs_web) for row in rows)
    needed = sum(row.needs_web for row in rows)
    line = f"| {HELD_OUT} | {len(rows)} | {needed} | {precision:.2f} | {recall:.2f} |"
    assert line in DOCS.read_text().splitlines()


@pytest.mark.slow(reason="learns the weights anew")
def test_the_weights_are_learned_from_the_labelled_messages() -> None:
    """`python -m tests.parts.grounding.search_decision` makes the weights that the package has, but for rounding."""
    learned = learn([example for name in files_to_learn() for example in read_examples(name)])
    stored = read_weights()
    features = learned.keys() | stored.keys()
    assert not [feature for feature in features if abs(learned.get(feature, 0.0) - stored.get(feature, 0.0)) > 0.05]


@pytest.mark.parametrize(
    ("message", "needs_web", "reason"),
    [
        ("search the web for tide tables", True, "asked"),
        ("帮我上网查一下高铁票价", True, "asked"),
        ("what is on https://example.com/a?", True, "url"),
        ("don't search the web: who is the president of France?", False, "forbidden"),
        ("without the internet, what is on https://example.com/a", False, "forbidden"),
        ("検索せずに教えて", False, "forbidden"),
        ("weather in Reykjavik", True, "score"),
        ("What did the Fed decide in November 2026?", True, "score"),
        ("who is the CEO of Intel", True, "score"),
        ("does pandas support python 3.14", True, "score"),
        ("Translate into French: what is the latest news?", False, "score"),
        ("Rewrite this email: the latest price is too high today", False, "score"),
        ("Write a poem about today's weather", False, "score"),
        ("why does my python function return the latest price twice", False, "score"),
        ("what is 17% of 2,340", False, "score"),
        ("how are you today?", False, "score"),
        ("how does a stock exchange work", False, "score"),
        ("", False, "none"),
        ("?!", False, "none"),
    ],
)
def test_a_decision_has_a_reason(message: str, needs_web: bool, reason: str) -> None:
    """The reason says what decided."""
    decision = decide([message], TODAY)
    assert (decision.needs_web, decision.reason) == (needs_web, reason)


def test_a_score_can_be_explained() -> None:
    """The words that weigh most come first, and a year counts by its distance from today."""
    words = dict(explain([find_question("how did bread prices develop in 1930")], TODAY))
    assert words["#past"] < 0
    assert [*words] == sorted(words, key=lambda word: (-abs(words[word]), word))
    assert "#past" not in dict(explain([find_question("how did bread prices develop in 1930")], date(1931, 1, 1)))


def test_no_message_needs_nothing() -> None:
    """Without a message there is nothing to decide."""
    assert decide([], TODAY) == Decision(needs_web=False, reason="none")


@pytest.mark.parametrize(
    ("message", "urls"),
    [
        ("see https://example.com/a.", ("https://example.com/a",)),
        ("(https://example.com/a_(b)) and <http://example.org/?q=1&r=2>", ("https://example.com/a_(b)", "http://example.org/?q=1&r=2")),
        ("[text](https://example.com/a), **https://example.org/**", ("https://example.com/a", "https://example.org/")),
        ("看https://example.com/页。好", ("https://example.com/页",)),
        ("is www.example.com/claim legit?", ("https://www.example.com/claim",)),
        ("HTTPS://Example.com/A twice HTTPS://Example.com/A", ("HTTPS://Example.com/A",)),
        ("https://a.example/ https://b.example/ https://c.example/ https://d.example/", FOUR),
        ("https://user:password@example.com/ and https://user@example.com/", ()),
        ("http://localhost:8080/v1 http://127.0.0.1/ http://[::1]/", ()),
        ("https:// http://[bad/ https://example.com:port/", ()),
        ("ftp://example.com/ file:///etc/passwd javascript:alert(1)", ()),
        ("`https://example.com/a` fetch('https://example.com/b')", ()),
        ("curl -X POST https://example.com/a", ()),
        ("```\nhttps://example.com/a\n```", ()),
        (f"https://example.com/{'a' * 3000}", ()),
        (f"summarise https://example.com/{'a' * 1500}", (f"https://example.com/{'a' * 1500}",)),
        (f"Is https://example.com/a right?\n{PAGE} https://example.com/b {PAGE}", ("https://example.com/a",)),
    ],
)  # fmt: skip
def test_urls_are_found(message: str, urls: tuple[str, ...]) -> None:
    """Addresses are found without the marks around them, and none in code, with credentials or of this machine."""
    decision = decide([message], TODAY)
    assert decision.urls == urls
    assert (decision.reason == "url") == bool(urls)


@pytest.mark.parametrize(
    ("asked", "needs_web"),
    [
        (["who is the CEO of Nestlé", "and of Unilever?"], True),
        (["who is the CEO of Nestlé", "and of Unilever?", "what about Danone"], True),
        (["what is the plot of Hamlet", "and of Macbeth?"], False),
        (["weather in Oslo", "ok thanks"], False),
        (["weather in Oslo", "put that into one sentence"], False),
        (["weather in Oslo", f"Summarise the following text:\n\n{PAGE}"], False),
    ],
)
def test_a_follow_up_is_decided_by_what_it_refers_to(asked: list[str], needs_web: bool) -> None:
    """A short message needs the web if it continues one that did."""
    assert decide(asked, TODAY).needs_web == needs_web


@pytest.mark.parametrize(
    ("networks", "urls"),
    [
        (["127.0.0.0/8"], ("http://localhost:8080/a", "http://127.0.0.1/b")),
        (["127.0.0.1"], ("http://localhost:8080/a", "http://127.0.0.1/b")),
        (["127.0.0.2"], ()),
        (["::1"], ("http://localhost:8080/a", "http://[::1]/c")),
    ],
)
def test_addresses_of_this_machine_are_found_where_they_are_allowed(networks: list[str], urls: tuple[str, ...]) -> None:
    """They are read like others, also by a follow-up."""
    message = "see http://localhost:8080/a http://127.0.0.1/b http://[::1]/c http://127.example.org/"
    loopback = [ip_network(network) for network in networks]
    assert decide([message], TODAY, loopback).urls == urls
    assert decide([message, "what else does it say?"], TODAY, loopback).urls == urls


def test_many_addresses_are_found_up_to_a_bound() -> None:
    """Twenty, so that the model can be told which were not read."""
    decision = decide([" ".join(f"https://{number}.example/" for number in range(30))], TODAY)
    assert decision.urls == tuple(f"https://{number}.example/" for number in range(20))


def test_a_follow_up_reads_the_same_page() -> None:
    """The addresses of a follow-up are those of the message that it refers to."""
    decision = decide(["summarise https://example.com/a", "what else does it say?"], TODAY)
    assert decision == Decision(needs_web=True, reason="follow_up", urls=("https://example.com/a",))


@pytest.mark.parametrize(
    ("message", "needs_web"),
    [
        (f"Summarise the following text:\n\n{PAGE}", False),
        (f"{PAGE}\n\nTranslate this into German.", False),
        (f"{PAGE}\n\nIs that still so in 2026?", True),
        (f"Is that still so in 2026?\n\n{PAGE}", True),
        (f"```\n{PAGE}\n```\nwhat does it do?", False),
    ],
)
def test_a_pasted_page_does_not_decide(message: str, needs_web: bool) -> None:
    """What the person says decides, not the words of a page that was pasted."""
    assert decide([message], TODAY).needs_web == needs_web


@given(st.lists(ODD_TEXT | st.text(max_size=300), max_size=3), st.dates(date(2001, 1, 1), date(2100, 1, 1)))
def test_every_message_is_decided(asked: list[str], today: date) -> None:
    """Every text has a decision, with a reason and at most twenty web addresses."""
    decision = decide(asked, today)
    assert decision.reason.replace("_", "").isalpha()
    assert len(decision.urls) <= 20
    assert all(url.lower().startswith(("http://", "https://")) for url in decision.urls)
    assert decision.needs_web or not decision.urls


UNITS = ["a", " ", "[", "http://", "www.", '"', "'", "```", "`", "best a in ", "1", "1.1,", "2000,", "A-1 ", "aB 1",
         "\n", ">\n", "? ", "今", "what "]  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_a_megabyte_costs_little(unit: str) -> None:
    """The cost of a decision does not depend on how long and awkward a message is."""
    for size in (600, 6_000, 1_000_000):
        message = unit * (size // len(unit))
        start_s = time.process_time()
        decide([message, message], TODAY)
        assert time.process_time() - start_s < 0.5
