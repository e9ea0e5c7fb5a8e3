"""One account of a running service: what it has, what the ledger says of it, and the proof of the ledger in the end.

The commands are the real ones, run in this process on the store of the server beside it: a process for each would
take longer than the tests themselves.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from typer.testing import CliRunner

from cadenza.cli import app
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.tokens import count_prompt
from tests.contract.wire import MESSAGES, Wire
from tests.service import CHARACTER, PASSWORD, Service

WAIT_S = 10.0
POLL_S = 0.02
CREDIT_NANO = 5_000_000_000
PROMPT_TOKENS = count_prompt([CHARACTER, MESSAGES[0]["content"]])  # our own count of what `Wire.chat` asks
FORTE_INPUT_NANO = 1_070
FORTE_OUTPUT_NANO = 3_450


class Purse:
    """An account of its own with a key of full access."""

    def __init__(self, service: Service, credit_nano: int) -> None:
        self.service = service
        self.email = f"purse-{secrets.token_hex(8)}@example.org"
        self.credit_nano = credit_nano
        credit = format_dollars(credit_nano)
        self.run("account", "create", self.email, "--credit", credit, "--password-stdin", given=PASSWORD)
        self.wire = Wire(service.port, self.create_key())

    def run(self, *args: str, given: str = "") -> str:
        """What a command prints on its standard output."""
        done = CliRunner().invoke(app, [*args, "--config", str(self.service.folder / "cadenza.toml")], input=given)
        assert done.exit_code == 0, f"cadenza {' '.join(args)}: {done.output}"
        return done.stdout

    def create_key(self, *options: str) -> str:
        return self.run("key", "create", "--account", self.email, *options).strip()

    def give(self, amount_nano: int) -> None:
        self.run("account", "credit", self.email, format_dollars(amount_nano))
        self.credit_nano += amount_nano

    @property
    def balance_nano(self) -> int:
        return parse_dollars(self._account["balance"])

    @property
    def held_nano(self) -> int:
        return parse_dollars(self._account["held"])

    @property
    def spent_nano(self) -> int:
        return self.credit_nano - self.balance_nano

    @property
    def charges(self) -> list[dict[str, Any]]:
        """The charges as an accountant gets them, oldest first."""
        exported = self.run("ledger", "export", "--account", self.email, "--format", "jsonl")
        entries = [json.loads(line) for line in exported.splitlines()]
        return [entry for entry in entries if entry["kind"] == "charge"]

    def charge(self) -> dict[str, Any]:
        """The only charge, which is all that was spent."""
        [charge] = self.charges
        assert charge["amount_nano"] == -self.spent_nano
        return charge

    def wait_until_ended(self) -> None:
        """Returns once no request of this account is running."""
        wait_until(lambda: self.held_nano == 0, "nothing being held")

    @property
    def _account(self) -> dict[str, str]:
        accounts: list[dict[str, str]] = json.loads(self.run("account", "list", "--json"))
        [own] = [account for account in accounts if account["email"] == self.email]
        return own


@contextlib.contextmanager
def open_purse(service: Service, credit_nano: int = CREDIT_NANO) -> Iterator[Purse]:
    """Whatever a test did with it: in the end nothing is held, no credit came from nowhere, and the ledger holds."""
    purse = Purse(service, credit_nano)
    yield purse
    purse.wait_until_ended()
    assert 0 <= purse.balance_nano <= purse.credit_nano
    purse.run("ledger", "check")


def wait_until(happened: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S} s: {what}"
        time.sleep(POLL_S)


def prompt_bytes(**fields: Any) -> int:
    """The bytes of what `Wire.chat` asks with these fields, its character layer included."""
    layer = json.dumps({"role": "system", "content": CHARACTER}, separators=(",", ":"))
    return len(layer) + len(json.dumps({"messages": MESSAGES, **fields}))


def forte_nano(prompt_tokens: int, completion_tokens: int) -> int:
    return prompt_tokens * FORTE_INPUT_NANO + completion_tokens * FORTE_OUTPUT_NANO
