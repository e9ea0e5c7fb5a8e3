"""Idempotent commands: each reference is carried out once, also when the answer to a COMMIT is lost."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cadenza.control.account.accounts import create_account
from cadenza.control.keys import KeyOrder, create_key
from cadenza.control.money.credit import correct_credit, give_credit
from cadenza.control.money.idempotency import FOR_ALL, digest_of
from cadenza.core.codes import digest_key
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Operator, Owner
from cadenza.ledger import check
from cadenza.parts.payments.transfers import Transfer, find_transfer, record_transfer
from cadenza.parts.payments.voucher_rows import VoucherOrder
from cadenza.parts.payments.vouchers import create_vouchers, redeem_voucher
from cadenza.store.schema import audit_events, entries, keys, vouchers
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreUnavailable, StoreUncertain
from cadenza.store.tables import accounts
from tests.cli.program import run_here
from tests.postgres import Postgres
from tests.store.lossy import LossyLine, lossy_line
from tests.store.moves import fund, money, opened, postgres_store
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

EMAIL = "acct_a@example.org"
OWNER = Owner("acct_a", COMMAND_LINE.name)
NEW_EMAIL = "new@example.org"
REFERENCE = "invoice 17"

FORMER = Statement(text("UPDATE command_references SET digest = :former WHERE digest = :new"))
SPELLED = ("ANNÉE 17-B", "anne\u0301e 17-b", " année  17-b ", "ａｎｎée 17－Ｂ", "année 17\u2011b", "année 17\u2212b")

Order = Callable[[Store, str], Awaitable[Any]]

ORDERS: dict[str, Order] = {
    "credit": lambda store, reference: give_credit(store, EMAIL, 7, "", NOW_MS, COMMAND_LINE, reference),
    "correct": lambda store, reference: correct_credit(store, EMAIL, -7, "why", COMMAND_LINE, NOW_MS, reference),
    "account": lambda store, reference: create_account(store, NEW_EMAIL, 7, "forte", NOW_MS, reference, "hash"),
    "key": lambda store, reference: create_key(store, OWNER, KeyOrder("laptop", reference=reference), NOW_MS),
    "voucher": lambda store, reference: create_vouchers(
        store, VoucherOrder(amount_nano=7, count=2, reference=reference), COMMAND_LINE, NOW_MS
    ),
    "transfer": lambda store, reference: record_transfer(
        store, EMAIL, Transfer(10**7, reference or "INV-17"), COMMAND_LINE, NOW_MS
    ),
}


async def made(store: Store) -> tuple[int, int, int, int]:
    """How many entries, keys, vouchers and audit events there are. The ledger must be sound."""
    assert await check.find_violations(store) == []
    entry, key, voucher, event = [len(await rows_of(store, table)) for table in (entries, keys, vouchers, audit_events)]
    return entry, key, voucher, event


@asynccontextmanager
async def behind_a_lossy_line(postgres: Postgres, folder: Path) -> AsyncIterator[tuple[Store, Store, LossyLine]]:
    """A funded store, the same store through a line that loses answers, and the line."""
    async with postgres_store(postgres) as (store, url), lossy_line(postgres, folder) as line:
        await fund(store, DOLLAR_NANO)
        async with opened(line.url_of(url)) as remote:
            await accounts.get_by_email(remote, EMAIL)
            yield store, remote, line


@pytest.mark.parametrize("name", ORDERS)
async def test_an_order_with_the_same_reference_counts_once(store: Store, url: str, name: str) -> None:
    """Four orders with one reference, in two processes at once, do one thing; without a reference each counts."""
    await fund(store, DOLLAR_NANO)
    async with opened(url) as beside:
        orders = [ORDERS[name]((store, beside)[number % 2], REFERENCE) for number in range(4)]
        done = await asyncio.gather(*orders, return_exceptions=True)
    assert all(isinstance(one, ControlError) for one in done if isinstance(one, Exception)), done
    once = await made(store)
    assert once[3] == 1
    if name != "account":  # an address has one account anyway
        await ORDERS[name](store, "")
        await ORDERS[name](store, "another")
        assert (await made(store))[3] == 3


async def test_a_repeated_grant_says_when_it_was_made(store: Store) -> None:
    """The second grant with a reference has the time of the first, and the balance of now."""
    await fund(store, DOLLAR_NANO)
    first = await give_credit(store, EMAIL, 7, "a gift", NOW_MS, COMMAND_LINE, REFERENCE)
    second = await give_credit(store, EMAIL, 7, "a gift", NOW_MS + 9, COMMAND_LINE, REFERENCE)
    assert (first.earlier_at, second.earlier_at) == (None, NOW_MS)
    assert second.account.balance_nano == DOLLAR_NANO + 7
    _, entry = await rows_of(store, entries)
    assert re.fullmatch("reference:[0-9a-f]{32}", entry.source)


async def test_a_reference_is_of_one_order(store: Store) -> None:
    """Another amount, account or command with a used reference is refused; somebody else's reference is another."""
    await fund(store, DOLLAR_NANO)
    await fund(store, DOLLAR_NANO, "b")
    await ORDERS["credit"](store, REFERENCE)
    before = await made(store)
    others: list[Order] = [
        lambda store, reference: give_credit(store, EMAIL, 8, "", NOW_MS, COMMAND_LINE, reference),
        lambda store, reference: give_credit(store, "acct_b@example.org", 7, "", NOW_MS, COMMAND_LINE, reference),
        *(ORDERS[name] for name in ("correct", "account", "key", "voucher", "transfer")),
    ]
    said = r"was used before for something else: a gift, 0.000000007 dollars for acct_a@example.org, at 20"
    for other in others:
        for reference in (REFERENCE, REFERENCE.upper()):
            with pytest.raises(ControlError, match=said):
                await other(store, reference)
    assert await made(store) == before
    await give_credit(store, EMAIL, 8, "", NOW_MS, Operator("operator@example.org"), REFERENCE)
    assert (await money(store))[0] == DOLLAR_NANO + 7 + 8


async def test_a_reference_is_the_same_in_every_spelling(store: Store) -> None:
    """Case, width, Unicode form, hyphen and spaces make no difference; what 0.1.0 stored is found as it was spelled."""
    await fund(store, DOLLAR_NANO)
    for number, name in enumerate(("credit", "transfer")):
        reference = f"année 17-b{number}"
        await ORDERS[name](store, reference)
        before = await made(store)
        for spelled in SPELLED:
            with contextlib.suppress(ControlError):
                await ORDERS[name](store, f"{spelled.rstrip()}{number}")
            with pytest.raises(ControlError, match="was used before for something else"):
                await ORDERS["correct"](store, f"{spelled.rstrip()}{number}")
        assert await made(store) == before
        for spelled in ("annee 17-b", "année 17b", "année17-b", "année 17 -b"):
            await ORDERS["correct"](store, f"{spelled}{number}")
    spelled = "inv\u201117"
    await ORDERS["transfer"](store, spelled)
    before = await made(store)
    digests = {"new": digest_of(FOR_ALL, spelled), "former": sha256(f"{FOR_ALL}\0{spelled}".encode()).digest()}
    await store.transact(lambda tx: tx.change(FORMER, digests))
    assert await find_transfer(store, spelled)
    with pytest.raises(ControlError, match="was recorded at"):
        await ORDERS["transfer"](store, spelled)
    assert await made(store) == before


async def test_a_reference_of_a_transfer_is_no_other(store: Store) -> None:
    """Whoever uses it again for a gift, a correction, an account or vouchers is refused, and the transfer is named."""
    await fund(store, DOLLAR_NANO)
    await ORDERS["transfer"](store, REFERENCE)
    before = await made(store)
    others: list[Order] = [
        lambda store, reference: give_credit(store, EMAIL, 7, "", NOW_MS, Operator("operator@example.org"), reference),
        *(ORDERS[name] for name in ("credit", "correct", "account", "voucher")),
    ]
    for other in others:
        with pytest.raises(ControlError, match=r"something else: a bank transfer, 0.01 dollars for acct_a@example.org"):
            await other(store, REFERENCE.title())
    assert await made(store) == before


async def test_a_bad_reference_is_refused(store: Store) -> None:
    """A reference is one line of at most 200 characters."""
    await fund(store, DOLLAR_NANO)
    for reference in ("a\nb", "x" * 201):
        with pytest.raises(ControlError, match="A reference is one line"):
            await ORDERS["credit"](store, reference)


async def test_a_secret_is_not_shown_again(store: Store) -> None:
    """A repetition says which account, key or vouchers were made: their secrets are not stored, nor changed."""
    await fund(store, DOLLAR_NANO)
    await ORDERS["account"](store, "one account")
    with pytest.raises(ControlError, match=rf"{NEW_EMAIL} was created before, with the password that was given then"):
        await ORDERS["account"](store, "one account")
    _, key = await ORDERS["key"](store, REFERENCE)
    with pytest.raises(ControlError, match=rf"made the key {key.prefix}… \({key.id}\) before"):
        await ORDERS["key"](store, REFERENCE)
    [(_, first), _] = await ORDERS["voucher"](store, "another")
    with pytest.raises(
        ControlError, match=rf"vouchers were made before: 2 of .* dollars, the first with the id {first.id}"
    ):
        await ORDERS["voucher"](store, "another")


@pytest.mark.parametrize("name", ORDERS)
async def test_a_lost_answer_is_asked_for_again(postgres: Postgres, tmp_path: Path, name: str) -> None:
    """If the answer to the COMMIT is lost, the order looks again: it is done once, and says so as if nothing was."""
    async with behind_a_lossy_line(postgres, tmp_path) as (store, remote, line):
        before = await made(store)
        line.lose_next_commit()
        done = await ORDERS[name](remote, "")
        assert line.lost.is_set()
        after = await made(store)
        assert after[3] == before[3] + 1
        if name == "key":
            secret, view = done
            assert [row.id for row in await rows_of(store, keys) if row.digest == digest_key(secret.encode())] == [
                view.id
            ]
        elif name == "voucher":
            assert (await redeem_voucher(store, OWNER, done[1][0], NOW_MS)).amount_nano == 7
        elif name == "credit":
            assert (done.earlier_at, done.account.balance_nano) == (None, DOLLAR_NANO + 7)


async def test_only_a_lost_commit_is_uncertain(postgres: Postgres, tmp_path: Path) -> None:
    """A connection that is lost before the COMMIT has certainly changed nothing."""
    async with behind_a_lossy_line(postgres, tmp_path) as (store, remote, line):
        before = await made(store)
        line.lose_next(b"INSERT INTO command_references")
        with pytest.raises(StoreUnavailable) as lost:
            await ORDERS["credit"](remote, "")
        assert not isinstance(lost.value, StoreUncertain)
        assert await made(store) == before


async def test_a_command_that_cannot_look_says_that_it_may_have_been_done(postgres: Postgres, tmp_path: Path) -> None:
    """If the store stays away, the command says how to repeat it; repeated so, it takes effect once."""
    async with postgres_store(postgres) as (store, url), AsyncExitStack() as stack:
        await fund(store, DOLLAR_NANO)
        line = await stack.enter_async_context(lossy_line(postgres, tmp_path))
        folder = tmp_path / "here"
        folder.mkdir()
        config = folder / "cadenza.toml"
        config.write_text(f'[store]\nurl = "{line.url_of(url)}"\n')
        line.lose_next_commit()
        command = ("account", "credit", EMAIL, "5.00")
        running = asyncio.create_task(asyncio.to_thread(run_here, folder, *command))
        await line.lost.wait()
        await stack.aclose()  # nobody listens any more
        done = await running
        assert done.returncode == 1
        said = re.search(
            r"it may have been done\. Run it again with --reference ([0-9a-f]{16}): it takes effect", done.stderr
        )
        assert said, done.stderr
        config.write_text(f'[store]\nurl = "{url}"\n')
        again = await asyncio.to_thread(run_here, folder, *command, "--reference", said[1])
        assert again.returncode == 0
        assert "and takes effect once: nothing was changed now" in again.stderr
        assert "The balance of acct_a@example.org is 6.00 dollars." in again.stderr
        assert (await money(store))[0] == 6 * DOLLAR_NANO
