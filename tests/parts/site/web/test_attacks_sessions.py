"""Somebody who knows a password, or has a cookie: what it opens after a change, and what it costs others."""

from concurrent.futures import ThreadPoolExecutor

from tests.service import PASSWORD, Service
from tests.visitor import Visitor, from_elsewhere, until_refused

NEW_PASSWORD = "another horse battery staple"
THIEVES = 4


def test_a_sign_in_during_a_change_of_the_password_opens_nothing(service: Service) -> None:
    """The old password is checked again when the session is made, so none of them outlives the change."""
    email, visitor = service.create_account(0, has_costly_hash=True), Visitor(service.port)
    visitor.sign_in(email)
    thieves = [Visitor(service.port, from_elsewhere()) for _ in range(THIEVES)]
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
