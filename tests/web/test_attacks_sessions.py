"""Somebody who knows a password, or has a cookie: what it opens after a change, and what it costs others."""

import secrets
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from tests.migrated import STORE_WAIT_S
from tests.service import PASSWORD, Service
from tests.visitor import Visitor, until_refused
from tests.web.operators import account_id_of, make_operator

NEW_PASSWORD = "another horse battery staple"
THIEVES = 4


def from_elsewhere() -> dict[str, str]:
    """The header of a trusted proxy, for a visitor from a network of its own."""
    a, b, c = secrets.token_bytes(3)
    return {"x-forwarded-for": f"10.{a}.{b}.{c}"}


def test_a_sign_in_during_a_change_of_the_password_opens_nothing(service: Service) -> None:
    """The old password is checked again when the session is made, so none of them outlives the change."""
    email, visitor = service.create_account(0, has_costly_hash=True), Visitor(service.port)
    visitor.sign_in(email)
    thieves = [Visitor(service.port, from_elsewhere()) for _ in range(THIEVES)]
    for thief in thieves:
        thief.get("/sign-in")
    form = {"email": email, "password": PASSWORD}
    with ThreadPoolExecutor(THIEVES) as threads:
        begun = [threads.submit(thief.post, "/sign-in", form) for thief in thieves]
        change = {"old_password": PASSWORD, "new_password": NEW_PASSWORD}
        assert visitor.post("/settings/security/password", change).status == 303
        assert {one.result().status for one in begun} <= {303, 400, 429}
    assert [thief.get("/settings").status for thief in thieves] == [303] * THIEVES


def test_changes_of_one_account_are_limited(service: Service, visitor: Visitor) -> None:
    """The audit log of an account does not grow without end, from however many networks."""
    change = {"theme": "dark"}
    *served, limited = until_refused(lambda: visitor.api("PATCH", "/preferences", change, from_elsewhere()))
    assert {seen.status for seen in served} == {200}
    assert limited.status == 429


def test_an_old_session_cannot_make_a_key(service: Service, visitor: Visitor, email: str) -> None:
    """A key outlives the session that made it, so it needs a recent proof. The form is shown after it."""
    with closing(sqlite3.connect(service.store, timeout=STORE_WAIT_S)) as store, store:
        store.execute("UPDATE sessions SET proved_at = 0 WHERE account_id = ?", (account_id_of(service, email),))
    assert visitor.get("/keys/new").location == "/confirm?next=/keys/new"
    assert visitor.post("/keys", {"name": "thief"}).location == "/confirm?next=/keys/new"
    assert visitor.api("POST", "/keys", {"name": "thief"}).status == 403
    assert visitor.get("/keys").status == 200
    assert visitor.post("/confirm", {"password": PASSWORD, "next": "/keys/new"}).status == 303
    visitor.get("/keys/new")
    assert visitor.post("/keys", {"name": "own"}).status == 200


def test_an_old_operator_session_cannot_take_accounts_over(service: Service, visitor: Visitor, email: str) -> None:
    """A role, credit, a suspension, and a link that sets a password need a recent proof. The form leads back then."""
    make_operator(service, email)
    page = f"/operator/accounts/{account_id_of(service, service.create_account(0))}"
    with closing(sqlite3.connect(service.store, timeout=STORE_WAIT_S)) as store, store:
        store.execute("UPDATE sessions SET proved_at = 0 WHERE account_id = ?", (account_id_of(service, email),))
    forms: dict[str, dict[str, str]] = {
        "/role": {"is_operator": "true"},
        "/reset-link": {},
        "/grants": {"amount": "1.00"},
        "/corrections": {"amount": "1.00", "reason": "x"},
        "/suspend": {},
        "/resume": {},
    }
    for path, fields in forms.items():
        assert visitor.post(page + path, fields).location == f"/confirm?next={page}"
        if path not in {"/role", "/reset-link"}:  # these are forms only
            assert visitor.api("POST", page + path, fields).status == 403, path
    assert visitor.post("/confirm", {"password": PASSWORD, "next": page}).location == f"{page}?note=confirmed"
    visitor.get(page)
    assert "/reset/" in visitor.post(f"{page}/reset-link").text
