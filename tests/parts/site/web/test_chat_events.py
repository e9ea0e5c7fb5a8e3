"""The events of a reply to the chat page that need no service."""

import json
from typing import Any

from cadenza.core.grounding import Grounding, ShownFile, Source
from cadenza.core.money import Price
from cadenza.gateway.relay import ReplyHead
from cadenza.parts.grounding.answer import find_citations
from cadenza.parts.site.chat.relay import ChatEvents

PAGE = Source("https://example.org/a", "A page", "Its text")
OTHER = Source("https://example.org/b", "Another", "Its text")
DOCUMENT = Source("local:travel.md", "Travel", "Its text")


def events_with(*sources: Source) -> ChatEvents:
    head = ReplyHead("chatcmpl-one", 1, "forte", Price(1, 1), grounding=Grounding(sources=sources))
    return ChatEvents(head)


def citation(source: Source, start: int) -> dict[str, Any]:
    place = {"start_index": start, "end_index": start + 3}
    return {"type": "url_citation", "url_citation": {"url": source.url, "title": source.title, **place}}


def test_sources_have_the_numbers_that_the_answer_cites() -> None:
    """Each cited source comes once, with its place among all; neither its text nor what is not cited is sent."""
    events = events_with(PAGE, OTHER, DOCUMENT)
    sent = events.annotations([citation(DOCUMENT, 40), citation(PAGE, 7), citation(DOCUMENT, 90)])
    assert json.loads(sent.removeprefix(b"data: ")) == {
        "type": "sources",
        "cited": True,
        "sources": [
            {"number": 1, "url": "https://example.org/a", "title": "A page"},
            {"number": 3, "url": "local:travel.md", "title": "Travel"},
        ],
    }


def test_the_start_names_the_files_that_were_read_in_part() -> None:
    """Their names and parts; nothing if there are none."""
    cut_files = (ShownFile("a.pdf", "page 3 of 9"),)
    head = ReplyHead("chatcmpl-one", 1, "forte", Price(1, 1), grounding=Grounding(cut_files=cut_files))
    sent = ChatEvents(head).role()
    assert json.loads(sent.removeprefix(b"data: "))["read"] == [{"name": "a.pdf", "shown": "page 3 of 9"}]
    assert b"read" not in events_with().role()


def test_sources_that_are_not_cited_say_so() -> None:
    """A reply that cites nothing has all that the model was given, marked as not cited."""
    events = events_with(PAGE, OTHER)
    found = find_citations("No marker here.", (PAGE, OTHER))
    sent = json.loads(events.annotations(found).removeprefix(b"data: "))
    assert (sent["cited"], [source["number"] for source in sent["sources"]]) == (False, [1, 2])
