"""A debt as people see it: credit that is taken back while a stream runs is owed until it ends, and is shown."""

import json

from tests.account import Account, run_command
from tests.loopback import ROLE, STOP, LoopbackUpstream, Pause, Sse, said
from tests.parts.site.web.operators import account_id_of, make_operator
from tests.raw_client import read_until
from tests.service import CREDIT_NANO, Service, wait_until
from tests.visitor import Visitor

DEBT = "SELECT debt_nano FROM accounts WHERE email = ?"

SPARE = "SELECT 1 FROM reserves JOIN accounts ON id = account_id WHERE email = ? AND has_spare"


def debt_nano(service: Service, email: str) -> int:
    return int(service.ledger.query(DEBT, email)[0]["debt_nano"])


def test_a_debt_is_shown_until_it_is_paid(
    service: Service, upstream: LoopbackUpstream, visitor: Visitor, email: str
) -> None:
    """New requests get 402 and every page says why; the stream that ends pays the debt from what it did not use."""
    account, owner, pause = Account(service, CREDIT_NANO), Visitor(service.port), Pause()
    owner.sign_in(account.email)
    make_operator(service, email)
    page = f"/operator/accounts/{account_id_of(service, account.email)}"
    upstream.script(Sse([ROLE, said("first words"), pause, STOP]))
    with account.api.open_chat(stream=True, max_tokens=1_000) as connection:
        read_until(connection, b"first words")
        taken = visitor.api("POST", f"{page}/corrections", {"amount": "5.00", "reason": "granted twice"})
        assert taken.status == 200
        wait_until(lambda: not service.ledger.query(SPARE, account.email), "the spare reserve")
        assert account.balance_nano == debt_nano(service, account.email)
        assert 0 < debt_nano(service, account.email) < CREDIT_NANO // 100
        said_402 = account.api.chat().error(402, "insufficient_quota")
        assert "open debt of 0.00" in str(said_402)
        assert "Your account has a debt of $0.00" in owner.get("/credit").words
        shown = owner.api("GET", "/credit").json["debt"]
        assert visitor.api("GET", page).json["account"]["debt"] == shown
        assert f"Debt ${shown[:6]}" in visitor.get(page).words
        listed = {one["email"]: one for one in json.loads(run_command(service, "account", "list", "--json"))}
        assert listed[account.email]["debt"] == shown
        pause.release()
        read_until(connection, b"[DONE]")
    wait_until(lambda: account.balance_nano == 0, "the end of the hold")
    left_nano = debt_nano(service, account.email)
    assert left_nano == -account.charges[0]["amount_nano"]  # what the stream has cost
    assert "granted twice: pays a debt of" in owner.get("/credit/statement").words
    service.give_credit(account.email, CREDIT_NANO)
    assert (account.balance_nano, debt_nano(service, account.email)) == (CREDIT_NANO - left_nano, 0)
    assert "debt of $" not in owner.get("/credit").words
    assert account.api.chat().status == 200
    service.ledger.check_rules()
