"""October 2025 of a small service, in round figures that can be checked by hand: tests/cli/transcripts/month.txt.

A request has 100,000 tokens in and 50,000 out. It is charged 2.00 dollars, and costs 0.80 dollars by the config.
"""

from datetime import UTC, datetime
from pathlib import Path

from cadenza.control.money.credit import give_credit
from cadenza.core.money import Price
from cadenza.core.records import COMMAND_LINE, Outcome, Usage
from cadenza.fleet import presence
from cadenza.ledger import transaction
from cadenza.ledger.rules import Demand, End, Hold
from cadenza.ledger.transaction import AccountMoves
from cadenza.parts.payments.transfers import Transfer, record_transfer
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, keys

ANN, BOB = "ann@example.org", "bob@example.org"
DOLLAR_NANO = 10**9
COST_NANO = DOLLAR_NANO * 8 // 10
PRICE = Price(10_000, 20_000)
USAGE = Usage(100_000, 50_000)
PROCESS = "proc_month"


def at(day: int) -> int:
    """Noon of a day of the month."""
    return int(datetime(2025, 10, day, 12, tzinfo=UTC).timestamp() * 1000)


async def fill(folder: Path) -> None:
    """Two transfers and a gift; ten requests of Ann, and four of Bob, the first of which the gift pays for."""
    store = SqliteStore(folder / "data" / "cadenza.db")
    await record_transfer(store, ANN, Transfer(100 * DOLLAR_NANO, "INV-1"), COMMAND_LINE, at(2))
    await record_transfer(store, BOB, Transfer(50 * DOLLAR_NANO, "INV-2"), COMMAND_LINE, at(3))
    await give_credit(store, BOB, 5 * DOLLAR_NANO, "a trial", at(3), COMMAND_LINE)
    await store.transact(lambda tx: presence.register(tx, PROCESS))
    await serve(store, ANN, 10, at(6))
    await serve(store, BOB, 4, at(20))
    await store.close()


async def serve(store: Store, email: str, count: int, at_ms: int) -> None:
    account = await accounts.get_by_email(store, email)
    assert account
    [(key, *_)] = [await keys.list_newest(store, "account_id", account.id, at_ms, 1)]
    name = email.partition("@")[0]

    def work(tx: Transaction) -> None:
        for number in range(count):
            completion_id = f"chatcmpl-{at_ms:011x}{name}{number}"
            hold = Hold(
                completion_id,
                account.id,
                key.id,
                "forte",
                USAGE.prompt_tokens,
                USAGE.completion_tokens,
                PRICE,
                stream=False,
                started_at=at_ms,
                request_id=completion_id,
            )
            outcome = Outcome(
                request_id=completion_id,
                completion_id=completion_id,
                account_id=account.id,
                endpoint="chat",
                usage=USAGE,
                provider="acme",
                model="large",
                status=200,
                first_byte_ms=5,
                duration_ms=9,
                ended_at=at_ms + 9,
            )
            due_nano = hold.due_nano(USAGE)
            end = End(outcome, hold, hold.amount_nano, due_nano, provider_cost_nano=COST_NANO)
            demand = Demand(kept_nano=0, in_use_nano=0, wanted_nano=0, usual_nano=0)
            transaction.apply_moves(tx, PROCESS, [AccountMoves(account.id, demand, [end], [])], at_ms)

    await store.transact(work)
