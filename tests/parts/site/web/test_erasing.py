"""What owners do with all of their data, while the service runs: download it, and erase it."""

import io
import json
import zipfile

from tests.cli.program import run_here
from tests.loopback import LoopbackUpstream
from tests.parts.site.web.test_security import make_old
from tests.raw_client import RawClient
from tests.service import Service
from tests.visitor import Visitor


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
    assert seen.post("/sign-in", {"email": email, "password": "whatever it was"}).status == 400
    checked = run_here(service.folder, "ledger", "check")
    assert checked.returncode == 0, checked.stderr


def test_owners_delete_their_own_account(service: Service, visitor: Visitor, email: str) -> None:
    """With the address typed again and a recent proof. The keys stop, and the audit log does not have the address."""
    client = RawClient(service.port, service.create_key(email))
    typed = {"confirmed_email": email.upper()}
    assert "That is not the address" in visitor.post("/settings/security/delete", {"confirmed_email": "x"}).words
    make_old(service, email)
    asked = visitor.post("/settings/security/delete", typed)
    assert client.get("/v1/models").status == 200
    assert visitor.confirm(asked).location == "/sign-in?note=account-deleted"
    assert client.get("/v1/models").status == 401
    assert "Your account is deleted." in visitor.get("/sign-in?note=account-deleted").words
    assert email.encode() not in service.store.read_bytes()


def test_an_operator_keeps_the_account(service: Service, visitor: Visitor, email: str) -> None:
    """Another operator must take the role away first."""
    run_here(service.folder, "account", "operator", email)
    reply = visitor.post("/settings/security/delete", {"confirmed_email": email})
    assert (reply.status, "must take the role away first" in reply.text) == (400, True)


def test_owners_download_their_data(service: Service, visitor: Visitor, email: str) -> None:
    """With a recent proof: a zip file of their own rows, noted in the audit log. The fourth in a row has to wait."""
    service.create_key(email)
    assert "Download your data" in visitor.get("/settings/security").words
    make_old(service, email)
    asked = visitor.post("/settings/security/export")
    seen = [visitor.confirm(asked), *(visitor.post("/settings/security/export") for _ in range(3))]
    assert [one.status for one in seen] == [200, 200, 200, 429]
    assert seen[0].headers["content-disposition"].startswith('attachment; filename="cadenza-acct_')
    archive = zipfile.ZipFile(io.BytesIO(seen[2].body))
    [account] = json.loads(archive.read("account.json"))
    assert account["email"] == email
    events = json.loads(archive.read("audit_events.json"))
    assert [event["actor"] for event in events if event["event"] == "account.export"] == [email] * 3
    assert "ten minutes" in seen[3].words


def test_no_access_token_opens_the_archive(service: Service, visitor: Visitor, email: str) -> None:
    """It is a form of the pages, like deleting: a token is no session, and a request without our token is refused."""
    token = run_here(service.folder, "token", "create", "--account", email, "--scope", "account:read").stdout.strip()
    stranger = Visitor(service.port, {"authorization": f"Bearer {token}"})
    assert stranger.post("/settings/security/export").status == 401
    assert visitor.post("/settings/security/export", {"csrf": "wrong"}).status == 403
