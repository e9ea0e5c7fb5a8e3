"""Whether a message needs the web."""

import re
import time
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.gateway.grounding.search.intent.decision import Decision, decide

TODAY = date(2026, 11, 16)
LABELLED: dict[str, Any] = tomllib.loads((Path(__file__).parent / "labelled_messages.toml").read_text())
DOCS = Path(__file__).parents[4] / "docs" / "grounding" / "when-it-searches.md"
PAGE = "The latest price of the share rose today, the company said on Tuesday. " * 300
FIRST_THREE = ("https://a.example/", "https://b.example/", "https://c.example/")
ODD_TEXT = st.text(st.sampled_from("ab A1.,:;?!-'\"`>[](){}<\n/@www.http今日さ%+=2026"), max_size=300)


def measured(part: str) -> tuple[int, int, str, str]:
    """The number of messages, how many need the web, precision and recall."""
    rows = [(decide(row["asked"], LABELLED["today"]).needs_web, row["needs_web"]) for row in LABELLED[part]]
    found, needed = sum(decided for decided, _ in rows), sum(needs for _, needs in rows)
    right = sum(decided and needs for decided, needs in rows)
    return len(rows), needed, f"{right / found:.2f}", f"{right / needed:.2f}"


def documented(part: str) -> tuple[int, int, str, str]:
    row = re.search(rf"^\| {part} \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", DOCS.read_text(), re.MULTILINE)
    assert row is not None
    return int(row[1]), int(row[2]), row[3], row[4]


@pytest.mark.parametrize("part", ["tuning", "held_out"])
def test_the_docs_say_how_good_the_decision_is(part: str) -> None:
    """Precision and recall are those that the docs say."""
    assert measured(part) == documented(part)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("search the web for tide tables", "asked"),
        ("what is on https://example.com/a?", "url"),
        ("what are the latest findings on sleep?", "recency"),
        ("What did the Fed decide in November 2026?", "recency"),
        ("Is there a holiday on 30 November?", "recency"),
        ("weather in Reykjavik", "changing"),
        ("who is the CEO of Intel", "changing"),
        ("100 usd to eur", "changing"),
        ("does pandas support python 3.14", "version"),
        ("Which terminal does Emirates use?", "named"),
        ("Translate into French: what is the latest news?", "translation"),
        ("Rewrite this email: the latest price is too high today", "text"),
        ("Write a poem about today's weather", "creative"),
        ("why does my python function return the latest price twice", "code"),
        ("what is 17% of 2,340", "maths"),
        ("how are you today?", "chat"),
        ("can you search the web?", "assistant"),
        ("what should I cook today with eggs", "personal"),
        ("how does a stock exchange work", "settled"),
        ("who won the world cup in 1998", "settled"),
        ("don't search the web: who is the president of France?", "forbidden"),
        ("without the internet, what is on https://example.com/a", "forbidden"),
        ("", "chat"),
    ],
)
def test_a_decision_has_a_reason(message: str, reason: str) -> None:
    """The reason names the rule that decided."""
    assert decide([message], TODAY).reason == reason


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
        ("https://a.example/ https://b.example/ https://c.example/ https://d.example/", FIRST_THREE),
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
    """Up to three addresses are found, without the marks around them, and none in code or with credentials."""
    decision = decide([message], TODAY)
    assert decision.urls == urls
    assert (decision.reason == "url") == bool(urls)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (["who is the CEO of Nestlé", "and of Unilever?"], "follow_up"),
        (["who is the CEO of Nestlé", "and of Unilever?", "what about Danone"], "follow_up"),
        (["what is the plot of Hamlet", "and of Macbeth?"], "none"),
        (["weather in Oslo", "ok thanks"], "chat"),
        (["weather in Oslo", "put that into one sentence"], "assistant"),
    ],
)
def test_a_follow_up_is_decided_by_what_it_refers_to(asked: list[str], reason: str) -> None:
    """A follow-up needs the web if the message before did."""
    assert decide(asked, TODAY).reason == reason


def test_a_follow_up_reads_the_same_page() -> None:
    """The addresses of a follow-up are those of the message that it refers to."""
    decision = decide(["summarise https://example.com/a", "what else does it say?"], TODAY)
    assert decision == Decision(needs_web=True, reason="follow_up", is_question=True, urls=("https://example.com/a",))


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


@pytest.mark.parametrize(
    ("message", "is_question"),
    [
        ("What is the capital of Mongolia?", True),
        ("weather in Oslo", True),
        ("write a poem", False),
        ("thanks!", False),
    ],
)
def test_questions_of_fact_are_marked(message: str, is_question: bool) -> None:
    """A question of fact is marked as one, even if it needs no web."""
    assert decide([message], TODAY).is_question == is_question


@given(st.lists(ODD_TEXT | st.text(max_size=300), max_size=3), st.dates(date(2001, 1, 1), date(2100, 1, 1)))
def test_every_message_is_decided(asked: list[str], today: date) -> None:
    """Every text has a decision, with a reason and at most three web addresses."""
    decision = decide(asked, today)
    assert decision.reason.replace("_", "").isalpha()
    assert len(decision.urls) <= 3
    assert all(url.lower().startswith(("http://", "https://")) for url in decision.urls)
    assert decision.needs_web or not decision.urls


UNITS = [
    "a",
    " ",
    "[",
    "http://",
    "www.",
    '"',
    "'",
    "```",
    "`",
    "best a in ",
    "1",
    "1.1,",
    "2000,",
    "A-1 ",
    "aB 1",
    "\n",
    ">\n",
    "? ",
    "今",
    "what ",
]


@pytest.mark.parametrize("unit", UNITS)
def test_a_megabyte_costs_little(unit: str) -> None:
    """The cost of a decision does not depend on how long and awkward a message is."""
    for size in (600, 6_000, 1_000_000):
        message = unit * (size // len(unit))
        start_s = time.process_time()
        decide([message, message], TODAY)
        assert time.process_time() - start_s < 0.5
