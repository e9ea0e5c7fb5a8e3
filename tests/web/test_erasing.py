"""An account is erased while the service runs."""

from tests.cli.program import run_here
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import PASSWORD, Service
from tests.visitor import Visitor
from tests.web.test_security import make_old


def test_keys_and_browsers_stop_at_once(
    service: Service, upstream: LoopbackUpstream, visitor: Visitor, email: str
) -> None:
    """The next request gets 401, the browser is signed out, spare reserves do not matter, and the ledger is sound."""
    client = RawClient(service.port, service.create_key(email))
    assert client.chat().status == 200
    visitor.api("POST", "/memory", {"text": "a note"})
    done = run_here(service.folder, "account", "erase", email, "--yes")
    assert done.returncode == 0, done.stderr
    assert client.chat().status == 401
    assert visitor.get("/settings/memory").location.startswith("/sign-in")
    seen = Visitor(service.port)
    seen.get("/sign-in")
    assert seen.post("/sign-in", {"email": email, "password": "whatever it was"}).status == 400
    checked = run_here(service.folder, "ledger", "check")
    assert checked.returncode == 0, checked.stderr


def test_owners_delete_their_own_account(service: Service, visitor: Visitor, email: str) -> None:
    """With the address typed again and a recent proof. The keys stop, and the audit log does not have the address."""
    client = RawClient(service.port, service.create_key(email))
    typed = {"confirmed_email": email.upper()}
    assert "That is not the address" in visitor.post("/settings/security/delete", {"confirmed_email": "x"}).words
    make_old(service, email)
    assert visitor.post("/settings/security/delete", typed).location.startswith("/confirm")
    visitor.post("/confirm", {"password": PASSWORD, "next": "/settings/security"})
    visitor.get("/settings/security")
    assert client.get("/v1/models").status == 200
    assert visitor.post("/settings/security/delete", typed).location == "/sign-in?note=account-deleted"
    assert client.get("/v1/models").status == 401
    assert "Your account is deleted." in visitor.get("/sign-in?note=account-deleted").words
    assert email.encode() not in service.store.read_bytes()


def test_an_operator_keeps_the_account(service: Service, visitor: Visitor, email: str) -> None:
    """Another operator must take the role away first."""
    run_here(service.folder, "account", "operator", email)
    reply = visitor.post("/settings/security/delete", {"confirmed_email": email})
    assert (reply.status, "must take the role away first" in reply.text) == (400, True)
