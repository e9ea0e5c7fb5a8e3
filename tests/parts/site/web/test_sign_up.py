"""Signing up: closed, by invitation, open, and open with e-mail. And the links that e-mails carry."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest

from tests.cli.program import run_here
from tests.loopback import LoopbackUpstream
from tests.mail_server import Mailbox, running_mailbox
from tests.parts.site.web.open_site import BASE_URL, OPENING_NANO, site_spec
from tests.parts.site.web.operators import account_id_of, change_store, make_operator, path_of_link
from tests.parts.site.web.test_security import add_app
from tests.service import EMAIL, PASSWORD, Service
from tests.service_config import ServiceSpec
from tests.visitor import Visitor, from_elsewhere, signed_in

NEW = "new@example.org"
NEW_PASSWORD = "another horse battery staple"


class Site(msgspec.Struct, frozen=True):
    """A service, and the mailbox that its e-mails go to."""

    service: Service
    mailbox: Mailbox

    def visitor(self) -> Visitor:
        return Visitor(self.service.port, from_elsewhere())

    def owner(self) -> tuple[str, Visitor]:
        """The address of a new account, and a browser that is signed in to it."""
        email = self.service.create_account(0)
        return email, signed_in(self.service, email, from_elsewhere())

    def reset_path(self, email: str) -> str:
        """The path of the link that resets a password, from its e-mail."""
        assert self.visitor().post("/reset", {"email": email}).location == "/reset?note=reset-sent"
        return self.mailbox.wait_for(email.lower(), "Reset").path

    def new_address_path(self, visitor: Visitor, email: str) -> str:
        seen = visitor.post("/settings/security/email", {"email": email})
        assert seen.location == "/settings/security?note=link-sent"
        return self.mailbox.wait_for(email, "new e-mail address").path

    def account(self, email: str) -> dict[str, object]:
        [found] = self.service.ledger.query("SELECT * FROM accounts WHERE email = ?", email)
        return dict(found)


@pytest.fixture(scope="module")
def open_site(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """Sign-up is open, and there is no e-mail."""
    with Service(site_spec(shared_upstream.base_url, "open")) as running:
        yield running


@pytest.fixture(scope="module")
def invite_site(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    with Service(site_spec(shared_upstream.base_url, "invite")) as running:
        yield running


@pytest.fixture(scope="module")
def site(shared_upstream: LoopbackUpstream) -> Iterator[Site]:
    """Sign-up is open, and there is e-mail."""
    with ExitStack() as stack:
        mailbox, port = stack.enter_context(running_mailbox())
        service = stack.enter_context(Service(site_spec(shared_upstream.base_url, "open", port)))
        yield Site(service, mailbox)


def test_sign_up_is_closed_by_default(stranger: Visitor) -> None:
    """The page says so, the form is refused, and an invitation does not work."""
    assert "Sign-up is closed" in stranger.get("/sign-up").words
    assert "Create an account" not in stranger.get("/sign-in").words
    assert stranger.post("/sign-up", {"email": NEW, "password": NEW_PASSWORD}).status == 400
    assert stranger.get("/join/anything").status == 404


def test_an_open_sign_up_makes_an_account(open_site: Service) -> None:
    """The new account is signed in, is no operator, has the opening credit, and is not verified."""
    visitor = Visitor(open_site.port, from_elsewhere())
    assert visitor.post("/sign-up", {"email": " New@Example.org ", "password": NEW_PASSWORD}).location == "/"
    account = visitor.api("GET", "/account").json
    assert (account["email"], account["is_operator"], account["verified_at"]) == (NEW, False, None)
    [row] = open_site.ledger.query("SELECT balance_nano FROM accounts WHERE email = ?", NEW)
    assert row["balance_nano"] == OPENING_NANO
    [event] = open_site.ledger.query("SELECT actor FROM audit_events WHERE account_id = ?", account["id"])
    assert event["actor"] == NEW


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"email": EMAIL}, "already"),
        ({"email": "no address"}, "not an email address"),
        ({"password": "short"}, "8 to 1024"),
    ],
)
def test_a_sign_up_that_cannot_be(open_site: Service, fields: dict[str, str], reason: str) -> None:
    """A taken or malformed address and a short password are refused."""
    visitor = Visitor(open_site.port, from_elsewhere())
    seen = visitor.post("/sign-up", {"email": "other@example.org", "password": NEW_PASSWORD, **fields})
    assert (seen.status, reason in seen.words) == (400, True)
    assert open_site.ledger.query("SELECT * FROM accounts WHERE email = ?", "other@example.org") == []


@pytest.mark.slow(reason="hashes passwords until a limit is used up")
def test_sign_ups_of_one_network_are_limited(open_site: Service) -> None:
    """A network has ten attempts, whatever their result: for opening credit, and to learn which addresses are taken."""
    visitor = Visitor(open_site.port, from_elsewhere())
    statuses = []
    for email in (*(f"many-{number}@example.org" for number in range(5)), *[EMAIL] * 6, "one-more@example.org"):
        visitor.cookies.clear()
        visitor.csrf = ""
        statuses.append(visitor.post("/sign-up", {"email": email, "password": NEW_PASSWORD}).status)
    assert statuses == [303] * 5 + [400] * 5 + [429] * 2


def test_opening_credit_is_limited_by_the_hour(
    shared_upstream: LoopbackUpstream, start_service: Callable[[ServiceSpec], Service]
) -> None:
    """However many networks ask, only so many new accounts get it in an hour; a taken address costs nothing."""
    spec = site_spec(shared_upstream.base_url, "open")
    more = spec.more_toml.replace("opening_credit", "opening_credits_per_hour = 2\nopening_credit")
    service = start_service(msgspec.structs.replace(spec, more_toml=more))
    statuses = []
    for email in ("a@example.org", EMAIL, "b@example.org", "c@example.org"):
        visitor = Visitor(service.port, from_elsewhere())
        statuses.append(visitor.post("/sign-up", {"email": email, "password": NEW_PASSWORD}).status)
    assert statuses == [303, 400, 303, 429]
    [found] = service.ledger.query("SELECT COUNT(*) AS accounts FROM accounts WHERE email LIKE '_@example.org'")
    assert found["accounts"] == 2


def test_an_invitation_makes_one_account(invite_site: Service) -> None:
    """The link of the command line works once; one for an address proves that address."""
    path = path_of_link(invite_site, "invite", NEW)
    visitor = Visitor(invite_site.port)
    assert "by invitation" in visitor.get("/sign-up").words
    assert NEW in visitor.get(path).words
    form = {"email": "another@example.org", "password": NEW_PASSWORD}
    assert visitor.post(path, form).location == "/chat?note=welcome"
    assert "Your account is ready." in visitor.get("/chat?note=welcome").words
    account = visitor.api("GET", "/account").json
    assert (account["email"], account["verified_at"] is not None) == (NEW, True)
    late = Visitor(invite_site.port)
    assert late.get(path).status == 404
    late.get("/sign-in")
    assert "used before" in late.post(path, {"password": NEW_PASSWORD}).words


def test_an_open_invitation_is_for_anybody(invite_site: Service) -> None:
    """Its reader chooses the address, which is not verified by that."""
    path, visitor = path_of_link(invite_site, "invite"), Visitor(invite_site.port)
    visitor.get(path)
    assert "already" in visitor.post(path, {"email": EMAIL, "password": NEW_PASSWORD}).words
    assert visitor.post(path, {"email": "guest@example.org", "password": NEW_PASSWORD}).status == 303
    assert visitor.api("GET", "/account").json["verified_at"] is None


def test_with_mail_the_link_makes_the_account(site: Site) -> None:
    """Signing up sends a link; opening it changes nothing, its button makes a verified account, and it works once."""
    visitor = site.visitor()
    assert visitor.post("/sign-up", {"email": NEW}).location == "/sign-up?note=mail-sent"
    path = site.mailbox.wait_for(NEW, "Your account").path
    assert NEW in visitor.get(path).words
    assert site.service.ledger.query("SELECT * FROM accounts WHERE email = ?", NEW) == []
    assert visitor.post(path, {"password": NEW_PASSWORD}).status == 303
    account = site.account(NEW)
    assert (account["balance_nano"], account["verified_at"] is not None) == (OPENING_NANO, True)
    assert site.visitor().get(path).status == 404


@pytest.mark.parametrize("path", ["/sign-up", "/reset"])
def test_the_reply_does_not_tell_who_has_an_account(site: Site, path: str) -> None:
    """It is the same for every address; only the owner of one learns more, by e-mail, and nobody else gets one."""
    email, strange = site.service.create_account(0), f"unknown{path.replace('/', '-')}@example.org"
    replies = [site.visitor().post(path, {"email": one}) for one in (email, strange, "no address")]
    assert len({(seen.status, seen.location, seen.text) for seen in replies}) == 1
    if path == "/sign-up":
        sent = site.mailbox.wait_for(email, "already").text
        assert ("/reset" in sent, "/join/" in sent) == (True, False)
        return
    site.reset_path(site.service.create_account(0))  # the queue keeps the order
    assert not [one for one in site.mailbox.emails if one.to == strange]


def test_a_reset_by_link(site: Site) -> None:
    """The link sets a password once, ends all sessions, and an e-mail tells the owner, also of keys that still work."""
    email, owner = site.owner()
    site.service.create_key(email)
    path, visitor = site.reset_path(email.upper()), site.visitor()
    visitor.get(path)
    assert "8 to 1024" in visitor.post(path, {"password": "short"}).words
    assert owner.get("/settings").status == 200
    assert "1 API key still works." in visitor.post(path, {"password": NEW_PASSWORD}).words
    assert owner.get("/settings").status == 303
    assert visitor.post(path, {"password": "a third password"}).status == 404
    site.visitor().sign_in(email, NEW_PASSWORD)
    told = site.mailbox.wait_for(email, "was changed").text
    assert ("1 API key still works." in told, "/keys" in told) == (True, True)


def test_a_link_leads_to_our_site_and_is_not_in_the_log(site: Site) -> None:
    """Whatever host a request names. The log of the service has neither the link nor the address of the e-mail."""
    email = site.service.create_account(0)
    host = {"host": "evil.example", "origin": "http://evil.example"}
    assert site.visitor().post("/reset", {"email": email}, host).status == 303
    sent = site.mailbox.wait_for(email, "Reset")
    assert (f"{BASE_URL}/reset/" in sent.text, "evil" in sent.text) == (True, False)
    site.visitor().get(sent.path)
    assert (email in site.service.output, sent.path in site.service.output) == (False, False)


def test_an_expired_link_is_dead(site: Site) -> None:
    """A link that is too old does nothing."""
    email = site.service.create_account(0)
    path, visitor = site.reset_path(email), site.visitor()
    visitor.get(path)
    change_store(site.service, "UPDATE links SET created_at = 1, expires_at = 2", ())
    assert "expired" in visitor.post(path, {"password": NEW_PASSWORD}).words
    site.visitor().sign_in(email)


def test_few_emails_are_sent(site: Site) -> None:
    """At most four to one address, however often they are asked for, and ten for one network."""
    email = site.service.create_account(0)
    assert [site.visitor().post("/reset", {"email": email}).status for _ in range(6)] == [303] * 6
    site.reset_path(site.service.create_account(0))  # the queue keeps the order
    assert len([one for one in site.mailbox.emails if one.to == email]) == 4
    visitor = site.visitor()
    statuses = [visitor.post("/reset", {"email": f"{number}@example.org"}).status for number in range(11)]
    assert statuses == [303] * 10 + [429]


def test_an_address_is_verified_by_link(site: Site) -> None:
    """The link that the page sends verifies the address, once."""
    email, visitor = site.owner()
    assert visitor.post("/settings/security/verification").location == "/settings/security?note=link-sent"
    path = site.mailbox.wait_for(email, "Verify").path
    visitor.get(path)
    assert site.account(email)["verified_at"] is None
    assert visitor.post(path).location == "/settings/security?note=verified"
    assert site.account(email)["verified_at"] is not None
    assert (visitor.post(path).status, visitor.get(path).status) == (404, 404)


def test_a_new_address_is_taken_by_link(site: Site) -> None:
    """The link goes to the new address and a notice to the old. Nobody else can use it, and only for its purpose."""
    email, visitor = site.owner()
    path = site.new_address_path(visitor, new := f"new-{email}")
    site.mailbox.wait_for(email, "asked for a new e-mail address")
    other, secret = site.owner()[1], path.rpartition("/")[2]
    assert (other.get(path).status, other.post(path).status) == (404, 404)
    for wrong in (f"/reset/{secret}", f"/verify/{secret}", f"/join/{secret}"):
        assert site.visitor().get(wrong).status == 404
    visitor.get(path)
    assert site.account(email)["email"] == email
    assert visitor.post(path).location == "/settings/security?note=address-changed"
    assert site.account(new)["verified_at"] is not None
    site.mailbox.wait_for(email, "was changed")


def test_a_password_change_stops_a_change_of_address(site: Site) -> None:
    """A thief's link for a new address is dead once the owner has changed the password."""
    email, visitor = site.owner()
    path = site.new_address_path(visitor, f"thief-{email}")
    visitor.post("/settings/security/password", {"old_password": PASSWORD, "new_password": NEW_PASSWORD})
    assert visitor.get(path).status == 404


def test_the_owner_is_told_what_changed(site: Site) -> None:
    """Credit, a suspension, a new key and another factor are told by e-mail, with no secret and no link in it."""
    email, visitor = site.owner()
    operators, operator = site.owner()
    make_operator(site.service, operators)
    page = f"/operator/accounts/{account_id_of(site.service, email)}"
    assert operator.api("POST", f"{page}/grants", {"amount": "5.00"}).status == 200
    assert "5.00 dollars" in site.mailbox.wait_for(email, "Credit was added").text
    for act, subject in (("suspend", "was suspended"), ("resume", "not suspended any more")):
        assert operator.api("POST", f"{page}/{act}").status == 200
        site.mailbox.wait_for(email, subject)
    visitor.sign_in(email)
    secret = visitor.api("POST", "/keys", {"name": "laptop"}).json["secret"]
    text = site.mailbox.wait_for(email, "A new key").text
    assert (secret[:12] in text, '"laptop"' in text, secret in text, "http" in text) == (True, True, False, False)
    add_app(visitor)
    site.mailbox.wait_for(email, "app was added")
    assert visitor.post("/settings/security/recovery-codes").status == 200
    site.mailbox.wait_for(email, "codes were replaced")
    assert visitor.post("/settings/security/app/remove").status == 303
    site.mailbox.wait_for(email, "app was removed")


def test_without_mail_the_operator_makes_the_link(service: Service, stranger: Visitor, email: str) -> None:
    """The page says so, and the link of the command line resets the password."""
    assert "cadenza account link reset EMAIL" in stranger.get("/reset").words
    assert stranger.post("/reset", {"email": email}).status == 400
    done = run_here(service.folder, "account", "link", "reset", email)
    path = done.stdout.strip().removeprefix("http://127.0.0.1:8080")
    stranger.get(path)
    assert stranger.post(path, {"password": NEW_PASSWORD}).status == 303
    Visitor(service.port).sign_in(email, NEW_PASSWORD)
