"""An account is erased while the service runs."""

from tests.cli.program import run_here
from tests.loopback import LoopbackUpstream
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
    seen.get("/sign-in")
    assert seen.post("/sign-in", {"email": email, "password": "whatever it was"}).status == 400
    checked = run_here(service.folder, "ledger", "check")
    assert checked.returncode == 0, checked.stderr
