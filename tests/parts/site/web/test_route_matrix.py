"""Every route of the site against who may ask and what may be sent: the cases are derived from the table of routes.

Each reply of an endpoint is held to the OpenAPI document. test_tokens.py has access tokens with and without the scope.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from cadenza.parts.site.routes import Access, ApiEndpoint, Page
from cadenza.parts.site.site_map import SITE
from tests.openapi import Document, read_document
from tests.parts.payments.local_stripe import WEBHOOK
from tests.parts.site.web.test_security import make_old
from tests.service import CREDIT_NANO, Service
from tests.visitor import API, Seen, Visitor, from_elsewhere, signed_in

Route = Page | ApiEndpoint

FOREIGN = {"x-cadenza-csrf": "x"}, {"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}
HOSTILE = ("<script>alert(1)</script>", "'; DROP TABLE keys; --", "a\x00b", "\u202e\ufffd", "x" * 5_000)
UNKNOWN = ("unknown", "%00", "%ff", "key_%C3%A9", "x" * 1_000)
WRONG: dict[type, Any] = {str: 5, int: "many", float: "fast", bool: "perhaps"}  # what a field of this type is not
CLOSED = [one for one in SITE.routes if one.access is not Access.ANYONE]
CHANGES = [one for one in CLOSED if one.method != "GET"]
FORMS = [one for one in SITE.routes if isinstance(one, Page) and one.method == "POST" and one.path != WEBHOOK]
WITH_BODY = [one for one in CHANGES if isinstance(one, ApiEndpoint) and one.takes]
FOR_OPERATORS = [one for one in CLOSED if one.access is Access.OPERATOR]
THINGS = {  # what an account owns: where it is made and listed, and the parameter of its routes
    "key_id": ("/keys", {"name": "mine"}),
    "note_id": ("/memory", {"text": "mine"}),
}
TRANSFERS = ("transfers", "transfers/refund")
PROVED = {  # the routes that need the password or a passkey of the last minutes
    "form": {
        *("/confirm", "/keys", "/settings/tokens", "/operator/classes/{class_id}/rollback"),
        *("/operator/requests/{completion_id}/refund", "/operator/routes/rest", "/operator/routes/resume"),
        *("/operator/vouchers", "/operator/vouchers/revoke", "/operator/months/{month}/close"),
        *(f"/settings/security/{name}" for name in ("email", "sessions/end-others", "delete", "export")),
        *(f"/settings/security/{name}" for name in ("app", "app/confirm", "app/remove", "recovery-codes")),
        "/settings/security/passkeys/{passkey_id}/remove",
        *(f"/operator/accounts/{{account_id}}/{name}" for name in ("suspend", "resume", "role", "reset-link")),
        *(f"/operator/accounts/{{account_id}}/{name}" for name in ("grants", "corrections", *TRANSFERS)),
    },
    "page": {"/settings/security/app"},
    "endpoint": {
        *("/keys", "/passkeys/ask-to-add", "/passkeys", "/operator/classes/{class_id}/rollback"),
        "/operator/requests/{completion_id}/refund",
        *(f"/operator/accounts/{{account_id}}/{name}" for name in ("suspend", "resume", "grants", "corrections")),
        *(f"/operator/accounts/{{account_id}}/{name}" for name in TRANSFERS),
    },
}
PROOF = re.compile('name="proof_password"|on the page /confirm')
OWNED = [(name, one) for name in THINGS for one in CLOSED if f"{{{name}}}" in one.path and one.access is Access.ACCOUNT]


def title(one: Any) -> str:
    return f"{one.method} {type(one).__name__} {one.path}" if isinstance(one, Page | ApiEndpoint) else str(one)


@pytest.fixture
def neighbour(service: Service) -> Visitor:
    """Signed in to another account."""
    return signed_in(service, service.create_account(CREDIT_NANO))


@pytest.fixture(scope="module")
def document(service: Service) -> Document:
    return read_document(service.port)


def ask(
    visitor: Visitor, one: Route, name: str = "unknown", body: Any = None, headers: Mapping[str, str] | None = None
) -> Seen:
    """Use a route as our own pages do, with this id in its path; a form has the fields of `body`."""
    path = re.sub(r"\{[^}]*\}", name, one.path)
    if isinstance(one, ApiEndpoint):
        return visitor.api(one.method, path, body, headers)
    return visitor.get(path, headers) if one.method == "GET" else visitor.post(path, body, headers)


def check_described(document: Document, one: Route, *replies: Seen) -> None:
    """The document has the status of each reply of an endpoint, and its schema."""
    for seen in replies if isinstance(one, ApiEndpoint) else ():
        document.check_reply((one.method, API + one.path), seen.status, seen.headers, seen.body)


def kind_of(one: Route) -> str:
    return "endpoint" if isinstance(one, ApiEndpoint) else "page" if one.method == "GET" else "form"


def valid(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A body with the required fields: amounts, words and numbers that are accepted in most places."""
    usual: dict[Any, Any] = {str: "1.00", bool: True, int: 1, float: 1.0, dict: {}}
    required = {one.name: one.type for one in msgspec.structs.fields(kind) if one.required}
    bare = {
        name: get_args(of)[0] if get_origin(of) is Annotated else get_origin(of) or of for name, of in required.items()
    }
    return {name: usual.get(of, "1.00") for name, of in bare.items()}


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


@pytest.mark.parametrize("one", CLOSED, ids=title)
def test_a_stranger_is_refused(stranger: Visitor, document: Document, one: Route) -> None:
    """A page leads to the sign-in and back, and everything else is a 401."""
    path = re.sub(r"\{[^}]*\}", "unknown", one.path)
    headers = from_elsewhere()
    body: dict[str, Any] | None = {} if isinstance(one, Page) or one.takes else None
    stranger.get("/sign-in", headers)
    seen = ask(stranger, one, body=body, headers=headers)
    assert seen.status == (303 if kind_of(one) == "page" else 401)
    assert seen.location == (f"/sign-in?next={path}" if kind_of(one) == "page" else "")
    check_described(document, one, seen)


def test_an_ordinary_account_is_no_operator(visitor: Visitor) -> None:
    """Every path below /operator is for operators, and refuses all others before it looks at what was sent."""
    assert {one.path for one in SITE.routes if one.path.startswith("/operator")} == {one.path for one in FOR_OPERATORS}
    assert [ask(visitor, one).status for one in FOR_OPERATORS] == [403] * len(FOR_OPERATORS)


def test_an_old_session_must_prove_itself(service: Service, operator: Visitor, email: str) -> None:
    """A form asks for the password, a page leads to /confirm and back, an endpoint says how to prove it."""
    csrf, asked = operator.csrf, {kind: set[str]() for kind in PROVED}
    make_old(service, email)
    for one in CLOSED:
        body: dict[str, Any] | None = (
            {"csrf": csrf} if isinstance(one, Page) else valid(one.takes) if one in WITH_BODY and one.takes else None
        )
        seen = ask(operator, one, body=body, headers={"x-cadenza-csrf": csrf, **from_elsewhere()})
        if seen.location.startswith("/confirm?next=") or (seen.status == 403 and PROOF.search(seen.text)):
            asked[kind_of(one)].add(one.path)
    assert asked == PROVED


@pytest.mark.parametrize("one", FORMS, ids=title)
def test_a_form_with_another_field_is_refused(operator: Visitor, one: Page) -> None:
    """Nobody sets what a form does not ask for; nothing is made."""
    assert ask(operator, one, body={"account_id_": "acct_other"}).status == 400
    assert [operator.api("GET", place).json["data"] for place, _ in THINGS.values()] == [[], []]


@pytest.mark.parametrize("one", [one for one in CLOSED if kind_of(one) != "form" and one.method == "GET"], ids=title)
def test_unknown_ids_are_not_found(operator: Visitor, document: Document, one: Route) -> None:
    """A path with an id that nothing has is 404, also one that no store could hold; another path is served."""
    for name in ("unknown", "%00", "%F0%9F%8E%B5") if "{" in one.path else ("",):
        seen = ask(operator, one, name)
        assert seen.status == 404 if name else seen.status in {200, 303}, (name, seen.status)
        check_described(document, one, seen)


@pytest.mark.parametrize("one", CHANGES, ids=title)
def test_only_our_own_pages_may_change_anything(operator: Visitor, document: Document, one: Route) -> None:
    """Without the token of the page, or from another site, every change is a 403, before the body is judged."""
    body = valid(one.takes) if isinstance(one, ApiEndpoint) and one.takes else None
    forms = ({"csrf": "x"}, {}, {}) if isinstance(one, Page) else (body,) * len(FOREIGN)
    seen = [ask(operator, one, body=sent, headers=headers) for sent, headers in zip(forms, FOREIGN, strict=True)]
    assert {answer.status for answer in seen} == {403}
    check_described(document, one, *seen)


@pytest.mark.parametrize("one", WITH_BODY, ids=title)
def test_a_wrong_body_is_refused(operator: Visitor, document: Document, one: ApiEndpoint) -> None:
    """400 with the error object for a wrong type, a missing field and an unknown one; nothing is made."""
    assert one.takes
    for body in wrong(one.takes):
        seen = ask(operator, one, body=body)
        assert (seen.status, list(seen.json)) == (400, ["error"]), body
        assert seen.json["error"]["type"] == "invalid_request_error"
        check_described(document, one, seen)
    assert [operator.api("GET", place).json["data"] for place, _ in THINGS.values()] == [[], []]


@pytest.mark.parametrize("one", WITH_BODY, ids=title)
def test_hostile_words_are_only_text(operator: Visitor, document: Document, one: ApiEndpoint) -> None:
    """Whatever a text field has, the endpoint takes it or refuses it; nothing breaks."""
    assert one.takes
    for name in text_fields(one.takes):
        for text in HOSTILE:
            seen = ask(operator, one, body={**valid(one.takes), name: text})
            assert seen.status in {200, 204, 400, 404}, (name, text)
            check_described(document, one, seen)


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
