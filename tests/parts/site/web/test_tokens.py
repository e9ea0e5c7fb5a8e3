"""Access tokens: which endpoints take one, what is refused, how it ends, and that the audit log names it."""

import json
import re
from collections.abc import Sequence
from importlib.resources import files

import pytest

from cadenza.core.codes import make_token
from cadenza.parts.site.routes import Access, ApiEndpoint
from cadenza.parts.site.site_map import SITE
from cadenza.parts.site.tokens import OPERATOR, SCOPES
from tests.cli.program import run_here
from tests.parts.site.web.operators import (
    account_id_of,
    audit_events_of,
    change_store,
    make_operator,
    path_of_link,
)
from tests.raw_client import RawClient
from tests.service import PASSWORD, Service
from tests.visitor import API, Seen, Visitor, from_elsewhere, signed_in, until_refused

ENDPOINTS = [one for one in SITE.routes if isinstance(one, ApiEndpoint)]
CLOSED = [one for one in ENDPOINTS if one.access is not Access.ANYONE]
ACCOUNT_SCOPES = [scope for scope in SCOPES if not scope.startswith(OPERATOR)]
SECRET = re.compile(r"cdz_[0-9A-Za-z]{49}")


def scope_options(scopes: Sequence[str]) -> list[str]:
    return [word for scope in scopes if scope for word in ("--scope", scope)]


def create_token(service: Service, email: str, scopes: Sequence[str]) -> str:
    done = run_here(service.folder, "token", "create", "--account", email, *scope_options(scopes))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ask(service: Service, token: str, method: str, path: str, body: bytes = b"{}") -> Seen:
    headers = {"authorization": f"Bearer {token}", "accept": "application/json", **from_elsewhere()}
    return Visitor(service.port).send(method, API + path, body if method != "GET" else b"", headers)


def ask_one(service: Service, token: str, one: ApiEndpoint) -> int:
    return ask(service, token, one.method, re.sub(r"\{[^}]*\}", "unknown", one.path)).status


@pytest.fixture
def operator_email(service: Service, email: str) -> str:
    make_operator(service, email)
    return email


def test_every_scope_is_of_a_route() -> None:
    """Routes name the scopes that tokens can have, and no others; an operator's route has an operator's scope."""
    assert {one.scope for one in ENDPOINTS if one.scope} == set(SCOPES)
    for one in ENDPOINTS:
        if one.scope:
            assert one.scope.startswith(OPERATOR) == (one.access is Access.OPERATOR), one.path
            assert one.method != "GET" or one.scope.endswith(":read"), one.path


def test_every_endpoint_has_a_user() -> None:
    """An endpoint without a scope is used by a script of our pages, or open to everybody."""
    static = files("cadenza.parts.site").joinpath("static")
    scripts = "".join(one.read_text() for one in static.iterdir() if one.name.endswith(".js"))
    unused = [one.path for one in ENDPOINTS if not one.scope and one.path.partition("{")[0] not in scripts]
    assert unused == ["/status"]  # for everybody, and in the docs


def test_each_route_needs_its_scope(service: Service, operator_email: str) -> None:
    """With its scope alone a route is open; with all others it is 403; one without a scope takes no token at all."""
    for scope in SCOPES:
        of_scope = [one for one in CLOSED if one.scope == scope]
        alone = create_token(service, operator_email, [scope])
        assert {ask_one(service, alone, one) for one in of_scope}.isdisjoint({401, 403}), scope
        others = create_token(service, operator_email, [one for one in SCOPES if one != scope])
        assert {ask_one(service, others, one) for one in of_scope} == {403}, scope
    every = create_token(service, operator_email, list(SCOPES))
    browser_only = [one for one in CLOSED if one.scope is None]
    assert {ask_one(service, every, one) for one in browser_only} <= {401, 403}


def test_a_script_makes_a_key_and_is_named(service: Service, email: str) -> None:
    """It needs no cookie, CSRF token or recent proof. The audit log has the address and the token."""
    token = create_token(service, email, ["keys:write", "usage:read"])
    made = ask(service, token, "POST", "/keys", b'{"name": "ci"}')
    assert made.status == 200
    assert RawClient(service.port, made.json["secret"]).get("/v1/models").status == 200
    [event] = service.ledger.query("SELECT actor, token FROM audit_events WHERE subject = ?", made.json["id"])
    assert (event["actor"], event["token"]) == (email, token[:12])
    refused = ask(service, token, "GET", "/keys")
    assert (refused.status, "lacks the scope 'keys:read'" in refused.json["error"]["message"]) == (403, True)


def test_a_key_shows_which_token_made_it(service: Service, visitor: Visitor, email: str) -> None:
    """On its page, in its API object, in the table of keys and in its JSON."""
    token = create_token(service, email, ["keys:write"])
    made = ask(service, token, "POST", "/keys").json
    assert made["created_by_token"] == token[:12]
    by_hand = visitor.api("POST", "/keys", {}).json
    assert by_hand["created_by_token"] is None
    assert f"with the access token {token[:12]}…" in visitor.get(f"/keys/{made['id']}").words
    assert "access token" not in visitor.get(f"/keys/{by_hand['id']}").words
    assert visitor.get("/keys").words.count(token[:12]) == 1
    assert run_here(service.folder, "key", "list", "--account", email).stdout.count(token[:12]) == 1
    listed = run_here(service.folder, "key", "list", "--account", email, "--json").stdout
    assert [key["created_by_token"] for key in json.loads(listed)] == [token[:12], None]


def test_a_reset_by_link_revokes_all_tokens(service: Service, email: str) -> None:
    """A thief may have made one. API keys go on working; the page says how many, and leads to them."""
    tokens, key = [create_token(service, email, ["account:read"]) for _ in range(2)], service.create_key(email)
    path = path_of_link(service, "reset", email)
    browser = Visitor(service.port)
    browser.get(path)
    seen = browser.post(path, {"password": "another horse"})
    assert [ask(service, token, "GET", "/account").status for token in tokens] == [401, 401]
    assert RawClient(service.port, key).get("/v1/models").status == 200
    assert (seen.status, 'href="/keys"' in seen.text) == (200, True)
    assert "2 access tokens were revoked. 1 API key still works." in seen.words
    assert audit_events_of(service, email)[-1] == (email, "account.reset_password", "access tokens revoked: 2")


@pytest.mark.parametrize(
    ("chosen", "status", "told"),
    [
        ({"revoke_tokens": "true"}, 401, "1 access token was revoked."),
        ({}, 200, "1 access token still works."),
    ],
)
def test_a_new_password_offers_to_revoke_tokens(
    service: Service, visitor: Visitor, email: str, chosen: dict[str, str], status: int, told: str
) -> None:
    """The page offers it, ticked; what the owner chose is done and told."""
    token = create_token(service, email, ["account:read"])
    assert 'name="revoke_tokens" value="true" checked' in visitor.get("/settings/security").text
    form = {"old_password": PASSWORD, "new_password": "another horse", **chosen}
    seen = visitor.post("/settings/security/password", form)
    assert (seen.status, told in seen.words) == (200, True)
    assert ask(service, token, "GET", "/account").status == status
    assert visitor.get("/settings").status == 200


def test_the_command_line_sets_a_password_and_revokes_all_tokens(service: Service, email: str) -> None:
    """It says how many tokens it revoked, and how many keys go on working."""
    token, _ = create_token(service, email, ["account:read"]), service.create_key(email)
    done = run_here(service.folder, "account", "password", email, "--password-stdin", given="another horse")
    assert "1 access token was revoked. 1 API key still works." in done.stderr
    assert ask(service, token, "GET", "/account").status == 401


def test_a_token_and_a_key_are_not_confused(service: Service, email: str) -> None:
    """Each is refused at the other's endpoints, with a message that says what it is and what is needed."""
    token = create_token(service, email, ACCOUNT_SCOPES)
    seen = RawClient(service.port, token).get("/v1/models")
    assert (seen.status, "This is an access token" in seen.json["error"]["message"]) == (401, True)
    refused = ask(service, service.create_key(email), "GET", "/account")
    assert (refused.status, "This is an API key" in refused.json["error"]["message"]) == (401, True)


def test_a_dead_token_is_refused(service: Service, email: str) -> None:
    """Unknown, mistyped, expired and revoked ones get the same 401, and so does that of a suspended account."""
    revoked, expired, suspended = (create_token(service, email, ["account:read"]) for _ in range(3))
    assert ask(service, revoked, "GET", "/account").json["email"] == email
    assert run_here(service.folder, "token", "revoke", revoked[:12]).returncode == 0
    change_store(service, "UPDATE access_tokens SET created_at = 1, expires_at = 2 WHERE prefix = ?", (expired[:12],))
    dead = [ask(service, one, "GET", "/account") for one in (revoked, expired, make_token(), revoked[:-1], "", "ü")]
    assert {(seen.status, seen.text) for seen in dead} == {(401, dead[0].text)}
    assert ask(service, suspended, "GET", "/account").status == 200
    assert run_here(service.folder, "account", "suspend", email).returncode == 0
    assert ask(service, suspended, "GET", "/account").status == 401


def test_scopes_of_operators_need_an_operator(service: Service, email: str) -> None:
    """An ordinary account gets none, and a token loses them with the role."""
    done = run_here(service.folder, "token", "create", "--account", email, "--scope", "operator.accounts:read")
    assert (done.returncode, "Only the token of an operator" in done.stderr) == (1, True)
    make_operator(service, email)
    token = create_token(service, email, ["operator.accounts:read", "account:read"])
    path = f"/operator/accounts/{account_id_of(service, email)}"
    assert ask(service, token, "GET", path).json["account"]["email"] == email
    change_store(service, "UPDATE accounts SET is_operator = FALSE WHERE email = ?", (email,))
    assert (ask(service, token, "GET", path).status, ask(service, token, "GET", "/account").status) == (403, 200)


def test_guesses_are_limited(service: Service) -> None:
    """A network that presents many tokens that are not live is told to wait."""
    guesser = Visitor(service.port)
    headers = {"authorization": f"Bearer {make_token()}"}
    replies = until_refused(lambda: guesser.api("GET", "/account", headers=headers))
    assert (replies[0].status, len(replies) < 200, "retry-after" in replies[-1].headers) == (401, True, True)


def test_a_token_is_made_and_revoked_on_its_page(service: Service, visitor: Visitor, email: str) -> None:
    """It is shown once, listed with its last use, and fails from its next request on once it is revoked."""
    assert visitor.post("/settings/tokens", {"scopes": "operator.accounts:read"}).status == 400
    made = visitor.post("/settings/tokens", {"name": "rotation", "scopes": ["keys:read", "usage:read"], "days": "30"})
    found = SECRET.search(made.text)
    assert found
    token = found[0]
    assert ask(service, token, "GET", "/keys").status == 200
    page = visitor.get("/settings/tokens")
    assert (token in page.text, token[:12] in page.text, page.text.count("<time")) == (False, True, 2)
    [path] = re.findall(r'action="(/settings/tokens/[^"]+/revoke)"', page.text)
    stranger = signed_in(service, service.create_account(0))
    assert stranger.post(path).status == 404
    assert visitor.post(path).location == "/settings/tokens?note=token-revoked"
    assert ask(service, token, "GET", "/keys").status == 401
    listed = run_here(service.folder, "token", "list", "--account", email).stdout
    assert ("rotation" in listed, "revoked" in listed, token in listed) == (True, True, False)
