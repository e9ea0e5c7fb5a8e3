"""One account of a running service, with a key: its balance, its charges, and a check of the ledger at the end."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from click.testing import CliRunner

from cadenza.cli import app
from tests.raw_client import MESSAGES, RawClient
from tests.service import CREDIT_NANO, STORE_WAIT_S, Service, wait_until
from tests.service_config import CHARACTER
from tests.tokens import count_prompt

PROMPT_TOKENS = count_prompt([CHARACTER, MESSAGES[0]["content"]])  # the local count of what `RawClient.chat` sends
FORTE_INPUT_NANO = 1_070
FORTE_OUTPUT_NANO = 3_450
ASK_BACK = "UPDATE reserves SET is_asked = TRUE WHERE account_id = (SELECT id FROM accounts WHERE email = ?)"
ACCOUNT = "SELECT balance_nano, held_nano FROM accounts WHERE email = ?"


class Account:
    """An account with a key that has every scope."""

    def __init__(self, service: Service, credit_nano: int) -> None:
        self.service = service
        self.email = service.create_account(credit_nano)
        self.credit_nano = credit_nano
        self.api = RawClient(service.port, self.create_key())

    def create_key(self, scopes: tuple[str, ...] = (), **limits: float) -> str:
        return self.service.create_key(self.email, scopes, cap=None, **limits)

    def give(self, amount_nano: int) -> None:
        self.service.give_credit(self.email, amount_nano)
        self.credit_nano += amount_nano

    @property
    def balance_nano(self) -> int:
        return int(self.service.ledger.query(ACCOUNT, self.email)[0]["balance_nano"])

    @property
    def held_nano(self) -> int:
        return int(self.service.ledger.query(ACCOUNT, self.email)[0]["held_nano"])

    @property
    def spent_nano(self) -> int:
        return self.credit_nano - self.balance_nano

    @property
    def charges(self) -> list[dict[str, Any]]:
        """Oldest first."""
        return self.service.ledger.charges_of(self.email)

    def charge(self) -> dict[str, Any]:
        """The only charge, which is all that was spent."""
        [charge] = self.charges
        assert charge["amount_nano"] == -self.spent_nano
        return charge

    def wait_until_ended(self) -> None:
        """Wait until no request of this account is running. A reserve is asked back, as another process would."""
        wait_until(self._is_nothing_held, "nothing being held")

    def _is_nothing_held(self) -> bool:
        if self.held_nano == 0:
            return True
        with contextlib.closing(sqlite3.connect(self.service.store, timeout=STORE_WAIT_S)) as store, store:
            store.execute(ASK_BACK, (self.email,))
        return False


@contextlib.contextmanager
def open_account(service: Service, credit_nano: int = CREDIT_NANO) -> Iterator[Account]:
    """At the end nothing may be held, the balance must lie between zero and the credit, and the ledger must hold."""
    account = Account(service, credit_nano)
    yield account
    account.wait_until_ended()
    assert 0 <= account.balance_nano <= account.credit_nano
    service.ledger.check_rules()


def run_command(service: Service, *args: str) -> str:
    """What a `cadenza` command prints. It runs in this process, which is faster than starting one."""
    done = CliRunner().invoke(app, [*args, "--config", str(service.config)])
    assert done.exit_code == 0, f"cadenza {' '.join(args)}: {done.output}"
    return done.stdout


def prompt_bytes(**fields: Any) -> int:
    """The bytes of what `RawClient.chat` sends with these fields, the character layer included."""
    layer = json.dumps({"role": "system", "content": CHARACTER}, separators=(",", ":"))
    return len(layer) + len(json.dumps({"messages": MESSAGES, **fields}))


def forte_nano(prompt_tokens: int, completion_tokens: int) -> int:
    return prompt_tokens * FORTE_INPUT_NANO + completion_tokens * FORTE_OUTPUT_NANO
