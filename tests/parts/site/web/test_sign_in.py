"""Signing in and out: sessions that cannot be fixed, forged or reused, forms of our own pages only, and limits."""

import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.cli.program import run_here
from tests.service import PASSWORD, Service
from tests.visitor import Visitor, from_elsewhere, signed_in

WRONG = "No account has this e-mail address and password."
NEW_PASSWORD = "another horse battery staple"


@pytest.fixture
def guest(service: Service) -> Visitor:
    """Not signed in, and from a network of its own."""
    return Visitor(service.port, from_elsewhere())


def sign_in(visitor: Visitor, email: str, password: str = PASSWORD, **fields: str) -> int:
    return visitor.post("/sign-in", {"email": email, "password": password, **fields}).status


def test_the_cookies_of_a_sign_in(guest: Visitor, email: str) -> None:
    """Scripts cannot read the cookies, and other sites cannot send them along."""
    seen = guest.post("/sign-in", {"email": email, "password": PASSWORD})
    assert (seen.status, seen.location) == (303, "/")
    cookie = seen.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert {"cadenza_session", "cadenza_device"} == set(guest.cookies)


def test_a_wrong_password_and_an_unknown_address_look_the_same(guest: Visitor, email: str) -> None:
    """The two pages differ in the typed address alone, and what was typed is kept."""
    pages = []
    for address in (email, "nobody@example.org"):
        seen = guest.post("/sign-in", {"email": address, "password": "a wrong password"})
        assert (seen.status, WRONG in seen.words, f'value="{address}"' in seen.text) == (400, True, True)
        pages.append(seen.text.replace(address, "").replace(guest.csrf, ""))
    assert pages[0] == pages[1]


def test_the_cookie_from_before_the_sign_in_is_not_the_session(guest: Visitor, email: str) -> None:
    """A cookie that somebody planted in the browser is worth nothing after the sign-in."""
    guest.cookies["cadenza_session"] = planted = "anonymous-planted"
    assert sign_in(guest, email) == 303
    assert guest.cookies["cadenza_session"] != planted
    thief = Visitor(guest.port)
    thief.cookies["cadenza_session"] = planted
    assert thief.get("/settings").location.startswith("/sign-in")


def test_signing_in_again_ends_the_session_before(guest: Visitor, email: str) -> None:
    """A browser has one session: the secret of the earlier one is dead."""
    assert sign_in(guest, email) == 303
    old = guest.cookies["cadenza_session"]
    assert guest.post("/sign-in", {"email": email, "password": PASSWORD}).status == 303
    thief = Visitor(guest.port)
    thief.cookies["cadenza_session"] = old
    assert thief.get("/settings").location.startswith("/sign-in")


@pytest.mark.parametrize(
    "change", [lambda cookie: cookie[:-1] + "x", lambda cookie: "é" + cookie, lambda _: "x" * 9999]
)
def test_a_tampered_cookie_is_no_session(visitor: Visitor, change: Callable[[str], str]) -> None:
    """A cookie that was changed by one letter, has other letters or is huge is like none."""
    visitor.cookies["cadenza_session"] = change(visitor.cookies["cadenza_session"])
    visitor.cookies = {name: value.encode().decode("latin-1") for name, value in visitor.cookies.items()}
    assert visitor.get("/settings").status in (303, 431)


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({"csrf": ""}, {}),
        ({"csrf": "0" * 64}, {}),
        ({}, {"origin": "https://evil.example"}),
        ({}, {"origin": "null"}),
        ({}, {"sec-fetch-site": "cross-site"}),
    ],
)
def test_a_form_of_another_site_is_refused(visitor: Visitor, fields: dict[str, str], headers: dict[str, str]) -> None:
    """Without its token, or from another origin, a form changes nothing."""
    form = {"old_password": PASSWORD, "new_password": NEW_PASSWORD, **fields}
    assert visitor.post("/settings/security/password", form, headers).status == 403
    assert visitor.post("/sign-out", fields, headers).status == 403
    assert visitor.get("/settings").status == 200


def test_the_token_of_another_session_is_refused(service: Service, visitor: Visitor) -> None:
    """A token counts only in the browser that got it: neither before the sign-in, nor of another account."""
    stranger = Visitor(service.port)
    other = signed_in(service, service.create_account(0))
    for token in (stranger.csrf, other.csrf):
        assert visitor.post("/sign-out", {"csrf": token}).status == 403
        assert visitor.api("PATCH", "/preferences", {}, {"x-cadenza-csrf": token}).status == 403


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example", "//evil.example", "/\\evil.example", "\\\\evil", "javascript:alert(1)", "/\t/x"],
)
def test_a_sign_in_leads_to_our_own_pages_only(guest: Visitor, email: str, elsewhere: str) -> None:
    """What a link says in `next` cannot lead to another site."""
    assert guest.post("/sign-in", {"email": email, "password": PASSWORD, "next": elsewhere}).location == "/"
    assert guest.get(f"/sign-in?next={elsewhere.replace(chr(9), '%09')}").location == "/"


def test_a_sign_in_leads_back_to_the_page_that_was_asked_for(guest: Visitor, email: str) -> None:
    """A page of our own in `next` is where the sign-in leads."""
    assert 'value="/settings/security"' in guest.get("/sign-in?next=/settings/security").text
    seen = guest.post("/sign-in", {"email": email, "password": PASSWORD, "next": "/settings/security"})
    assert seen.location == "/settings/security"


def test_signing_out_ends_the_session(visitor: Visitor) -> None:
    """The secret is dead, even for somebody who kept it."""
    kept = visitor.cookies["cadenza_session"]
    assert visitor.post("/sign-out").location == "/sign-in?note=signed-out"
    assert "cadenza_session" not in visitor.cookies
    visitor.cookies["cadenza_session"] = kept
    assert visitor.get("/settings").status == 303


def test_attempts_on_one_account_are_limited_but_not_for_its_owner(service: Service, email: str) -> None:
    """After ten wrong passwords from ten networks strangers must wait, and a browser of the owner signs in."""
    owner = Visitor(service.port, from_elsewhere())
    owner.sign_in(email)
    owner.post("/sign-out")
    for _ in range(10):
        assert sign_in(Visitor(service.port, from_elsewhere()), email, "a wrong password") == 400
    stranger = Visitor(service.port, from_elsewhere())
    assert sign_in(stranger, email) == 429
    seen = stranger.post("/sign-in", {"email": email, "password": PASSWORD})
    assert int(seen.headers["retry-after"]) > 0
    assert sign_in(owner, email) == 303


def test_a_suspended_account_cannot_be_used(service: Service, guest: Visitor, email: str) -> None:
    """Its sessions end with the suspension, and signing in says that it is suspended."""
    assert sign_in(guest, email) == 303
    assert run_here(service.folder, "account", "suspend", email).returncode == 0
    assert guest.get("/settings").status == 303
    assert "suspended" in guest.post("/sign-in", {"email": email, "password": PASSWORD}).words
    assert run_here(service.folder, "account", "resume", email).returncode == 0
    assert sign_in(guest, email) == 303


def test_a_huge_password_is_not_hashed(guest: Visitor, email: str) -> None:
    """A password beyond the bound is wrong, and a form beyond 64 KiB is refused."""
    assert sign_in(guest, email, "x" * 60_000) == 400
    assert sign_in(guest, email, "x" * 70_000) == 413


def test_slow_forms_keep_nobody_waiting(service: Service) -> None:
    """While forms of others do not arrive, a visitor is served."""
    head = b"POST /sign-in HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\nemail="
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), 200)).sendall(head)
        assert Visitor(service.port).get("/sign-in").status == 200
