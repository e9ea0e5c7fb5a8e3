"""Preferences count from the next request on."""

import re

import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import Service
from tests.visitor import Visitor

FORM = {"preferred_class": "mezzo", "theme": "dark", "uses_memory": "true"}
CHOSEN = {"class": "mezzo", "theme": "dark", "web_search": False, "memory": True, "usage_cost": False}


def preferences(visitor: Visitor) -> dict[str, object]:
    found: dict[str, object] = visitor.api("GET", "/account").json["preferences"]
    return found


def test_the_form_changes_all_preferences(visitor: Visitor) -> None:
    """What was chosen is kept and shown: a switch that is not sent is off."""
    assert preferences(visitor)["class"] == "forte"
    assert visitor.post("/settings", FORM).location == "/settings?note=saved"
    assert preferences(visitor) == CHOSEN
    page = visitor.get("/settings").text
    assert 'data-theme="dark"' in page
    assert '<option value="mezzo" selected>' in page


def test_the_endpoint_changes_what_it_is_given(visitor: Visitor) -> None:
    """What is left out stays."""
    assert visitor.api("PATCH", "/preferences", {"theme": "light"}).json["theme"] == "light"
    assert preferences(visitor) == {**CHOSEN, "class": "forte", "theme": "light", "web_search": True}


def test_the_class_counts_on_the_next_request(
    service: Service, upstream: LoopbackUpstream, visitor: Visitor, email: str
) -> None:
    """A chat with `auto` is served by the class that the account prefers at that moment."""
    client = RawClient(service.port, service.create_key(email))
    for class_id in ("mezzo", "fortissimo"):
        assert visitor.api("PATCH", "/preferences", {"class": class_id}).status == 200
        assert client.chat(model="auto").json["model"] == class_id


def test_replies_say_their_cost_if_the_account_wants_it(
    service: Service, upstream: LoopbackUpstream, visitor: Visitor, email: str
) -> None:
    """The switch counts for all keys, from the next request on."""
    client = RawClient(service.port, service.create_key(email))
    for is_on in (True, False):
        assert visitor.api("PATCH", "/preferences", {"usage_cost": is_on}).status == 200
        assert ("cost" in client.chat().usage) is is_on


@pytest.mark.parametrize(
    "change",
    [
        {"class": "piano"},
        {"class": "auto"},
        {"theme": "pink"},
        {"low_balance": "1.00"},
        {"is_operator": True},
        {"web_search": "perhaps"},
    ],
)
def test_what_cannot_be_chosen_is_refused(visitor: Visitor, change: dict[str, object]) -> None:
    """A wrong value, and a field that is no preference, change nothing."""
    before = preferences(visitor)
    seen = visitor.api("PATCH", "/preferences", change)
    assert (seen.status, seen.json["error"]["type"]) == (400, "invalid_request_error")
    assert preferences(visitor) == before


def test_a_mistake_in_the_form_is_told_beside_it(visitor: Visitor) -> None:
    """What was typed stays in the form."""
    seen = visitor.post("/settings", {**FORM, "preferred_class": "piano"})
    assert (seen.status, 'role="alert"' in seen.text) == (400, True)
    assert re.search(r'value="dark"[^>]* checked', seen.text)
