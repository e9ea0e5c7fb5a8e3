"""The page of sign-in and security: password, address, sessions, second factor, and the proof that changes need."""

import re
import time
from base64 import b32decode
from concurrent.futures import ThreadPoolExecutor

import pytest

from cadenza.parts.site.sign_in.second_factor import STEP_S, code_at
from tests.parts.site.web.operators import change_store, path_of_link
from tests.service import PASSWORD, Service
from tests.visitor import Visitor

NEW_PASSWORD = "another horse battery staple"
SECRET = re.compile(r'id="totp-secret">([A-Z2-7 ]+)<')
CODE = re.compile(r"\b[2-9a-z]{4}-[2-9a-z]{4}-[2-9a-z]{4}\b")
SESSION_FORM = re.compile(r"/settings/security/sessions/[0-9a-f]{24}/end")
STEP_MS = STEP_S * 1000


def another(visitor: Visitor, email: str, password: str = PASSWORD) -> Visitor:
    """One more browser of the same person."""
    browser = Visitor(visitor.port, {"user-agent": "Mozilla/5.0 (Windows NT 10.0) Firefox/140.0"})
    browser.sign_in(email, password)
    return browser


def make_old(service: Service, email: str) -> None:
    """Move the last proof of all sessions of an account 20 minutes back."""
    of_account = "WHERE account_id = (SELECT id FROM accounts WHERE email = ?)"
    change_store(service, f"UPDATE sessions SET proved_at = proved_at - 1200000 {of_account}", (email,))


def add_app(visitor: Visitor) -> tuple[bytes, list[str]]:
    """Add an authenticator app by the forms. Returns its secret and the recovery codes."""
    assert visitor.post("/settings/security/app").location == "/settings/security/app"
    page = visitor.get("/settings/security/app")
    assert "<svg" in page.text
    found = SECRET.search(page.text)
    assert found
    secret = b32decode(found[1].replace(" ", ""))
    shown = visitor.post("/settings/security/app/confirm", {"code": code_of(secret)})
    assert shown.status == 200, shown.words
    codes = CODE.findall(shown.words)
    assert len(codes) == 10
    return secret, codes


def code_of(secret: bytes, drift: int = 0) -> str:
    return code_at(secret, time.time_ns() // 1_000_000 // STEP_MS + drift)


def test_a_new_password_signs_all_others_out(visitor: Visitor, email: str) -> None:
    """After the change a stolen cookie is worthless, the old cookie of this browser too, and the new password works."""
    stolen, kept = another(visitor, email), visitor.cookies["cadenza_session"]
    form = {"old_password": PASSWORD, "new_password": NEW_PASSWORD}
    assert visitor.post("/settings/security/password", form).location == "/settings/security?note=password-changed"
    assert visitor.cookies["cadenza_session"] != kept
    assert stolen.get("/settings").status == 303
    assert visitor.get("/settings").status == 200
    stolen.cookies["cadenza_session"] = kept
    assert stolen.get("/settings").status == 303
    another(visitor, email, NEW_PASSWORD)


def test_a_password_is_changed_only_with_the_old_one(visitor: Visitor) -> None:
    """A wrong old password, and a new one that is too short, are told beside the form."""
    for old, new, reason in (("a wrong one", NEW_PASSWORD, "not your password"), (PASSWORD, "short", "8 to 1024")):
        seen = visitor.post("/settings/security/password", {"old_password": old, "new_password": new})
        assert (seen.status, reason in seen.words, 'role="alert"' in seen.text) == (400, True, True)


def test_guesses_of_the_old_password_are_limited(visitor: Visitor) -> None:
    """A thief of a session has ten guesses."""
    for _ in range(10):
        assert visitor.post("/confirm", {"proof_password": "a guess of it"}).status == 400
    assert visitor.post("/confirm", {"proof_password": PASSWORD}).status == 429


def test_a_form_goes_on_after_the_proof(service: Service, visitor: Visitor, email: str) -> None:
    """A session of 20 minutes gives the password once; then the form takes effect as it was typed."""
    make_old(service, email)
    hostile = '"><script>alert(1)</script>'
    asked = visitor.post("/keys", {"name": hostile, "scopes": ["inference", "usage"], "burst": "7"})
    assert (asked.status, hostile in asked.text) == (403, False)
    assert 'href="/keys/new" data-after-submit="Back">Cancel' in asked.text
    wrong = visitor.confirm(asked, "a wrong one")
    assert (wrong.status, "This is not your password." in wrong.words) == (400, True)
    assert visitor.api("GET", "/keys").json["data"] == []
    kept = visitor.cookies["cadenza_session"]
    assert visitor.confirm(wrong).status == 200
    [key] = visitor.api("GET", "/keys").json["data"]
    assert (key["name"], key["scopes"], key["burst"]) == (hostile, ["inference", "usage"], 7)
    assert visitor.cookies["cadenza_session"] != kept
    assert visitor.post("/settings/security/sessions/end-others").location.endswith("note=sessions-ended")


def test_every_other_session_ends_after_the_proof(service: Service, visitor: Visitor, email: str) -> None:
    """The browser that gave it has a new secret by then, and stays signed in."""
    other = another(visitor, email)
    make_old(service, email)
    asked = visitor.post("/settings/security/sessions/end-others")
    assert visitor.confirm(asked).location == "/settings/security?note=sessions-ended"
    assert (visitor.get("/settings").status, other.get("/settings").status) == (200, 303)


def test_a_form_that_fails_after_the_proof_keeps_the_session(service: Service, visitor: Visitor, email: str) -> None:
    """The error has a page of its own; the new secret of the session is sent with it."""
    make_old(service, email)
    unknown = visitor.post("/settings/security/passkeys/unknown/remove")
    assert visitor.confirm(unknown).status == 404
    assert visitor.get("/settings").status == 200


def test_a_proof_is_not_given_for_a_form_of_long_ago(service: Service, visitor: Visitor, email: str) -> None:
    """A page that asked more than 15 minutes ago does nothing, whatever the browser proved meanwhile."""
    typed = {"confirmed_email": email}
    make_old(service, email)
    asked = visitor.post("/settings/security/delete", typed)
    [asked_at] = re.findall(r'name="proof_asked_at" value="(\d+)"', asked.text)
    visitor.confirm(visitor.get("/confirm"))
    for wrong in (str(int(asked_at) - 15 * 60_000), "x", "9" * 5_000):
        seen = visitor.post("/settings/security/delete", {**typed, "proof_asked_at": wrong, "proof_password": PASSWORD})
        assert seen.location == "/settings/security?note=too-late"
    assert visitor.get("/settings").status == 200


def test_a_foreign_form_is_never_asked_about(service: Service, visitor: Visitor, email: str) -> None:
    """Or a page of another site could have its own form confirmed."""
    make_old(service, email)
    seen = visitor.post("/keys", {"csrf": "x", "name": "theirs", "scopes": ["inference"]})
    assert (seen.status, "theirs" in seen.text) == (403, False)


def test_a_page_with_a_secret_needs_a_recent_proof(service: Service, visitor: Visitor, email: str) -> None:
    """It leads to /confirm and back, and never to another site."""
    visitor.post("/settings/security/app")
    make_old(service, email)
    page = "/settings/security/app"
    assert visitor.get(page).location == f"/confirm?next={page}"
    asked = visitor.get(f"/confirm?next={page}")
    assert visitor.confirm(asked, "a wrong one").status == 400
    assert visitor.confirm(asked).location == f"{page}?note=confirmed"
    assert visitor.get(page).status == 200
    assert visitor.post("/confirm", {"next": "//evil.example"}).location == "/?note=confirmed"


def test_sessions_are_listed_and_ended_one_by_one(visitor: Visitor, email: str) -> None:
    """The page names the browsers, and one of them can be signed out."""
    other = another(visitor, email)
    page = visitor.get("/settings/security")
    assert "Firefox on Windows" in page.words
    [path] = SESSION_FORM.findall(page.text)
    assert visitor.post(path).location == "/settings/security?note=session-ended"
    assert other.get("/settings").status == 303
    assert visitor.post(path).status == 404


def test_a_session_of_another_account_cannot_be_ended(service: Service, visitor: Visitor) -> None:
    """The id of somebody else's session is unknown, like any other."""
    victim = Visitor(service.port)
    email = service.create_account(0)
    victim.sign_in(email)
    another(victim, email)
    [path] = SESSION_FORM.findall(victim.get("/settings/security").text)
    for unknown in (path, "/settings/security/sessions/" + "0" * 24 + "/end"):
        assert visitor.post(unknown).status == 404
    assert SESSION_FORM.findall(victim.get("/settings/security").text) == [path]


def test_signing_out_everywhere_else(visitor: Visitor, email: str) -> None:
    """All other browsers are signed out, this one stays."""
    others = [another(visitor, email) for _ in range(2)]
    assert visitor.post("/settings/security/sessions/end-others").location == "/settings/security?note=sessions-ended"
    assert [other.get("/settings").status for other in others] == [303, 303]
    assert visitor.get("/settings").status == 200


def test_with_an_app_the_password_alone_is_not_enough(visitor: Visitor, email: str) -> None:
    """The password gives half a session, which opens no page; the code makes it whole, once."""
    secret, codes = add_app(visitor)
    browser = Visitor(visitor.port)
    seen = browser.post("/sign-in", {"email": email, "password": PASSWORD, "next": "/settings/security"})
    assert seen.location == "/sign-in/second-factor?next=/settings/security"
    half = browser.cookies["cadenza_session"]
    for path in ("/settings", "/settings/security", "/confirm"):
        assert browser.get(path).location.startswith("/sign-in")
    assert browser.api("GET", "/account").status == 401
    assert browser.get("/sign-in").location.startswith("/sign-in/second-factor")
    assert browser.post("/sign-in/second-factor", {"code": "000000"}).status == 400
    code = code_of(secret, 1)  # newer than the one that confirmed the app
    seen = browser.post("/sign-in/second-factor", {"code": code, "next": "/settings/security"})
    assert seen.location == "/settings/security"
    assert browser.cookies["cadenza_session"] != half
    thief = Visitor(visitor.port)
    assert thief.post("/sign-in", {"email": email, "password": PASSWORD}).status == 303
    assert thief.post("/sign-in/second-factor", {"code": code}).status == 400
    assert thief.post("/sign-in/second-factor", {"code": codes[0]}).status == 303


def test_a_recovery_code_used_twice_at_the_same_instant(visitor: Visitor, email: str) -> None:
    """Of several browsers that use the same code at once, one is signed in."""
    _, codes = add_app(visitor)
    browsers = [Visitor(visitor.port) for _ in range(4)]
    for browser in browsers:
        browser.post("/sign-in", {"email": email, "password": PASSWORD})
    with ThreadPoolExecutor(len(browsers)) as threads:
        done = threads.map(lambda one: one.post("/sign-in/second-factor", {"code": codes[1]}).status, browsers)
    assert sorted(done) == [303, 400, 400, 400]


def test_a_reset_does_not_pass_the_second_factor(service: Service, visitor: Visitor, email: str) -> None:
    """After a new password by link, the code is still asked for."""
    add_app(visitor)
    path = path_of_link(service, "reset", email)
    browser = Visitor(service.port)
    browser.get(path)
    assert browser.post(path, {"password": NEW_PASSWORD}).location == "/sign-in?note=password-set"
    seen = browser.post("/sign-in", {"email": email, "password": NEW_PASSWORD})
    assert seen.location.startswith("/sign-in/second-factor")


def test_guesses_of_codes_are_limited(visitor: Visitor, email: str) -> None:
    """Who has the password has five guesses of the code."""
    add_app(visitor)
    browser = Visitor(visitor.port)
    browser.post("/sign-in", {"email": email, "password": PASSWORD})
    statuses = [browser.post("/sign-in/second-factor", {"code": "000000"}).status for _ in range(6)]
    assert statuses == [400, 400, 400, 400, 400, 429]


def test_an_app_can_be_removed(visitor: Visitor, email: str) -> None:
    """Without it the password is enough again, and the recovery codes are gone."""
    add_app(visitor)
    assert "10 of 10 left" in visitor.get("/settings/security").words
    assert visitor.post("/settings/security/app/remove").location == "/settings/security?note=app-removed"
    assert "Recovery codes" not in visitor.get("/settings/security").words
    another(visitor, email)


def test_without_mail_a_new_address_counts_at_once(service: Service, visitor: Visitor, email: str) -> None:
    """It is not verified; an address of another account is refused."""
    other, new = service.create_account(0), f"new-{email}"
    assert "Another account" in visitor.post("/settings/security/email", {"email": other}).words
    seen = visitor.post("/settings/security/email", {"email": new.upper()})
    assert seen.location == "/settings/security?note=address-changed"
    page = visitor.get("/settings/security").words
    assert new in page
    assert "Not verified" in page
    another(visitor, new)


@pytest.mark.parametrize("credential", [{}, {"id": 1}, {"response": {"clientDataJSON": "e30"}}, {"response": []}])
def test_what_is_no_passkey_is_refused(visitor: Visitor, credential: dict[str, object]) -> None:
    """A credential that a script made up is refused with a sentence, with and without a session."""
    stranger = Visitor(visitor.port)
    stranger.get("/sign-in")
    for one, path in ((visitor, "/passkeys"), (visitor, "/proof/passkey"), (stranger, "/sign-in/passkey")):
        seen = one.api("POST", path, {"credential": credential})
        assert (seen.status, "not accepted" in seen.json["error"]["message"]) == (400, True)


def test_passkeys_of_others_cannot_be_removed(visitor: Visitor) -> None:
    """An unknown passkey is a 404, whatever its id looks like."""
    for passkey_id in ("00", "zz", "ff" * 500):
        assert visitor.post(f"/settings/security/passkeys/{passkey_id}/remove").status == 404
