"""cadenza audit list."""

import asyncio
import json
from pathlib import Path

from cadenza.core.records import COMMAND_LINE
from cadenza.store.address import open_store
from cadenza.store.store import Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import AuditEvent
from tests.cli.conftest import EMAIL
from tests.cli.program import run_here

FIELDS = ["id", "at", "actor", "event", "account", "subject", "detail", "token"]


def write_events(folder: Path, count: int) -> None:
    """Events on the only account of the store, a second apart, and one that concerns no account."""
    [account] = json.loads(run_here(folder, "account", "list", "--json").stdout)
    written = [AuditEvent(at * 1000, COMMAND_LINE, "key.revoke", account["id"], f"key_{at}") for at in range(count)]
    written.append(AuditEvent(0, EMAIL, "ledger.check", None, "ledger", "no findings"))

    def write(tx: Transaction) -> None:
        for event in written:
            audit_events.add(tx, event)

    async def run() -> None:
        store = open_store(f"sqlite:///{folder}/data/cadenza.db")
        await store.transact(write)
        await store.close()

    asyncio.run(run())


def test_events_are_listed_oldest_first(furnished: Path) -> None:
    """Each event is listed with its fields; --count takes the newest, --account those of one account."""
    write_events(furnished, 3)
    listed = json.loads(run_here(furnished, "audit", "list", "--json").stdout)
    shown = [event for event in listed if event["event"] in {"key.revoke", "ledger.check"}]
    assert [event["subject"] for event in shown] == ["key_0", "key_1", "key_2", "ledger"]
    assert list(shown[0]) == FIELDS
    assert (shown[1]["at"], shown[1]["actor"], shown[1]["account"]) == ("1970-01-01T00:00:01Z", COMMAND_LINE, EMAIL)
    newest = json.loads(run_here(furnished, "audit", "list", "--count", "1", "--json").stdout)
    assert [event["subject"] for event in newest] == ["ledger"]
    own = run_here(furnished, "audit", "list", "--account", EMAIL).stdout
    assert "key_2" in own
    assert "ledger.check" not in own


def test_an_unknown_account_is_refused(furnished: Path) -> None:
    """An address without an account is one sentence, not an empty list."""
    done = run_here(furnished, "audit", "list", "--account", "nobody@example.org")
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is no account" in done.stderr
