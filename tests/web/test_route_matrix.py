"""Every route of the site against what may be sent to it: the cases are derived from the table of routes.

test_attacks_access.py has strangers and ordinary accounts, test_tokens.py has access tokens with and without the scope.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

import msgspec
import pytest

from cadenza.web.routes import Access, ApiEndpoint, Page
from cadenza.web.site_map import ROUTES
from tests.service import CREDIT_NANO, Service
from tests.visitor import Seen, Visitor
from tests.web.operators import make_operator

Route = Page | ApiEndpoint

FOREIGN = {"x-cadenza-csrf": "x"}, {"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}
HOSTILE = ("<script>alert(1)</script>", "'; DROP TABLE keys; --", "a\x00b", "\u202e\ufffd", "x" * 5_000)
UNKNOWN = ("unknown", "%00", "%ff", "key_%C3%A9", "x" * 1_000)
WRONG: dict[type, Any] = {str: 5, int: "many", float: "fast", bool: "perhaps"}  # what a field of this type is not
CLOSED = [one for one in ROUTES if one.access is not Access.ANYONE]
CHANGES = [one for one in CLOSED if one.method != "GET"]
WITH_BODY = [one for one in CHANGES if isinstance(one, ApiEndpoint) and one.takes]
THINGS = {  # what an account owns: where it is made and listed, and the parameter of its routes
    "key_id": ("/keys", {"name": "mine"}),
    "note_id": ("/memory", {"text": "mine"}),
}
OWNED = [(name, one) for name in THINGS for one in CLOSED if f"{{{name}}}" in one.path and one.access is Access.ACCOUNT]


def title(one: Any) -> str:
    return f"{one.method} {type(one).__name__} {one.path}" if isinstance(one, Page | ApiEndpoint) else str(one)


@pytest.fixture
def operator(service: Service, email: str, visitor: Visitor) -> Visitor:
    """Signed in to an operator's account of this test alone."""
    make_operator(service, email)
    return visitor


@pytest.fixture
def neighbour(service: Service) -> Visitor:
    """Signed in to another account."""
    signed_in = Visitor(service.port)
    signed_in.sign_in(service.create_account(CREDIT_NANO))
    return signed_in


def ask(
    visitor: Visitor, one: Route, name: str = "unknown", body: Any = None, headers: Mapping[str, str] | None = None
) -> Seen:
    """Use a route as our own pages do, with this id in its path; a form has the fields of `body`."""
    path = re.sub(r"\{[^}]*\}", name, one.path)
    if isinstance(one, ApiEndpoint):
        return visitor.api(one.method, path, body, headers)
    return visitor.get(path, headers) if one.method == "GET" else visitor.post(path, body, headers)


def valid(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A body with the required fields: amounts, words and numbers that are accepted in most places."""
    usual: dict[Any, Any] = {str: "1.00", bool: True, int: 1, float: 1.0}
    return {one.name: usual.get(one.type, "1.00") for one in msgspec.structs.fields(kind) if one.required}


def wrong(kind: type[msgspec.Struct]) -> Iterator[Any]:
    """Bodies that no such endpoint takes: no object, no JSON type that a field has, and an unknown field."""
    yield from ([], "words", 5, {**valid(kind), "account_id": "acct_other"})
    for one in msgspec.structs.fields(kind):
        parts = [get_origin(part) or part for part in (one.type, *get_args(one.type))]
        yield {**valid(kind), one.name: {"a": "dict"}}
        yield from ({**valid(kind), one.name: WRONG[part]} for part in parts[:1] if part in WRONG)
        if one.required:
            yield {name: value for name, value in valid(kind).items() if name != one.name}


def text_fields(kind: type[msgspec.Struct]) -> list[str]:
    return [one.name for one in msgspec.structs.fields(kind) if str in (one.type, *get_args(one.type))]


@pytest.mark.parametrize("one", CHANGES, ids=title)
def test_only_our_own_pages_may_change_anything(operator: Visitor, one: Route) -> None:
    """Without the token of the page, or from another site, every change is a 403, before the body is judged."""
    body = valid(one.takes) if isinstance(one, ApiEndpoint) and one.takes else None
    forms = ({"csrf": "x"}, {}, {}) if isinstance(one, Page) else (body,) * len(FOREIGN)
    seen = [ask(operator, one, body=sent, headers=headers) for sent, headers in zip(forms, FOREIGN, strict=True)]
    assert {answer.status for answer in seen} == {403}


@pytest.mark.parametrize("one", WITH_BODY, ids=title)
def test_a_wrong_body_is_refused(operator: Visitor, one: ApiEndpoint) -> None:
    """400 with the error object for a wrong type, a missing field and an unknown one; nothing is made."""
    assert one.takes
    for body in wrong(one.takes):
        seen = ask(operator, one, body=body)
        assert (seen.status, list(seen.json)) == (400, ["error"]), body
        assert seen.json["error"]["type"] == "invalid_request_error"
    assert [operator.api("GET", place).json["data"] for place, _ in THINGS.values()] == [[], []]


@pytest.mark.parametrize("one", WITH_BODY, ids=title)
def test_hostile_words_are_only_text(operator: Visitor, one: ApiEndpoint) -> None:
    """Whatever a text field has, the endpoint takes it or refuses it; nothing breaks."""
    assert one.takes
    for name in text_fields(one.takes):
        for text in HOSTILE:
            assert ask(operator, one, body={**valid(one.takes), name: text}).status in {200, 400, 404}, (name, text)


@pytest.mark.parametrize(("name", "one"), OWNED, ids=title)
def test_what_others_own_is_unknown(visitor: Visitor, neighbour: Visitor, name: str, one: Route) -> None:
    """An id of another account is 404 with the same words as one that does not exist, and nothing is changed."""
    place, body = THINGS[name]
    thing = neighbour.api("POST", place, body).json["id"]
    before = neighbour.api("GET", place).json
    csrf = visitor.csrf  # a page that reports a problem has none
    takes_body = one.takes if isinstance(one, ApiEndpoint) else one.path.endswith("}")  # others are a button
    fields = {**(body if takes_body else {}), **({"csrf": csrf} if isinstance(one, Page) else {})}
    seen = [ask(visitor, one, each, fields or None, {"x-cadenza-csrf": csrf}) for each in (thing, *UNKNOWN)]
    assert {(answer.status, answer.words) for answer in seen} == {(404, seen[0].words)}
    assert neighbour.api("GET", place).json == before
    assert visitor.api("GET", place).json["data"] == []


@pytest.mark.parametrize("name", THINGS)
def test_the_owner_may_repeat_an_end(service: Service, visitor: Visitor, name: str) -> None:
    """The owner reads, changes and ends it; ending it again changes nothing, and the audit log has it once."""
    place, body = THINGS[name]
    thing = visitor.api("POST", place, body).json["id"]
    for method in ("PATCH", "DELETE", "DELETE"):
        seen = visitor.api(method, f"{place}/{thing}", body if method == "PATCH" else None)
        assert seen.status in {200, 204, 404}, seen.text
    rows = service.ledger.query("SELECT event FROM audit_events WHERE subject = ? ORDER BY id", thing)
    ends = [row["event"] for row in rows if row["event"].endswith(("revoke", "remove"))]
    assert len(ends) == 1
