"""What operators, owners and the payment provider do in a run, and what must have become of it at the end."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

import msgspec

from cadenza.control.account.accounts import suspend_account
from cadenza.control.money.credit import correct_credit, give_credit
from cadenza.control.money.refunds import refund_request
from cadenza.core.errors import ControlError
from cadenza.core.money import NANO_PER_CENT
from cadenza.core.records import COMMAND_LINE, Cap, Owner, Period
from cadenza.fleet.changes import make_change
from cadenza.ledger import credit, payments
from cadenza.ledger.cap_rows import set_cap
from cadenza.ledger.origins import CreditMove
from cadenza.ledger.payments import Payment, PaymentIds
from cadenza.observe import places
from cadenza.parts.payments import voucher_rows as vouchers
from cadenza.parts.payments.events import DisputeClosed, Disputed, Fact, Paid, PaymentEvent, Refunded
from cadenza.parts.payments.payments import Result, apply_event
from cadenza.parts.payments.transfers import Transfer, TransferRefund, record_transfer, refund_transfer
from cadenza.parts.payments.voucher_codes import code_prefix, digest_code, normal_code
from cadenza.parts.payments.voucher_rows import Voucher
from cadenza.parts.payments.vouchers import Redeemed, redeem_voucher
from cadenza.store.store import StoreRefused, StoreUnavailable
from cadenza.store.tables import keys
from tests.simulation.network import Link
from tests.simulation.plan import DOLLAR_NANO, PlannedCommand
from tests.simulation.scheduler import VirtualLoop
from tests.simulation.themes import CommandKind

if TYPE_CHECKING:
    from tests.simulation.world import World

PROVIDER = "simulated"
PAUSES_S = (0.0, 0.05, 0.5, 3.0)  # between the events of a payment


class Effect(msgspec.Struct):
    """The credit that a command gives or takes (below zero), by the sources or the note of its entries."""

    sources: tuple[str, ...] = ()
    note: str = ""
    amounts_nano: set[int] = msgspec.field(default_factory=lambda: {0})  # that are possible

    def may_be(self, amount_nano: int) -> None:
        """The command was sent."""
        self.amounts_nano.add(amount_nano)

    def must_be(self, amount_nano: int) -> None:
        """The command returned."""
        self.amounts_nano = {amount_nano}


class CapChange(msgspec.Struct, frozen=True):
    """A cap that was set, and from when on: a request that begins later must not pass it."""

    cap: Cap | None
    since_s: float


class Operator:
    """Carries out commands, on connections of its own."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.loop = VirtualLoop(world.scheduler, "operator")  # type: ignore[abstract]
        self.link = Link(world.scheduler, self.loop, Random(f"operator {world.plan.seed}"))
        self.store = self.loop.inside(lambda: world.machine.open_store(self.loop, self.link))
        self.effects: dict[str, Effect] = {}
        self.revoked_s: dict[str, float] = {}  # when a revocation returned, by key
        self.maybe_revoked: set[str] = set()
        self._taken_nano: dict[str, int] = {}  # by corrections of all that is there
        self.repaid: set[str] = set()  # the requests whose refund returned
        self.caps: dict[str, list[CapChange]] = defaultdict(list)  # by key; those that may have failed have no end

    def start(self, command: PlannedCommand) -> None:
        self.loop.start(self._run(command))

    async def _run(self, command: PlannedCommand) -> None:
        """Repetitions have the same reference: they take effect once."""
        work = self._prepare(command)
        times = range(command.repeats + 1)
        if command.is_at_once:
            await asyncio.gather(*[self._try(command, work) for _ in times])
        else:
            for _ in times:
                await self._try(command, work)

    async def _try(self, command: PlannedCommand, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (StoreUnavailable, ControlError) as error:
            text = str(error)
            self._world.note(lambda: f"command {command.number} failed: {text[:80]}")
        except Exception as error:  # noqa: BLE001 it is reported
            detail = f"{command.kind} {command.number}: {places(error)} {error!r}"
            self._world.checks.fail("no command meets an internal error", detail)
        else:
            self._world.note(lambda: f"command {command.number}: {command.kind} of account {command.account} returns")

    def _now_ms(self) -> int:
        return self._world.plan.start_ms + round(self._world.scheduler.now_s * 1000)

    def _prepare(self, command: PlannedCommand) -> Callable[[], Awaitable[None]]:
        if command.kind == "repay":
            return self._repay(command)
        works: dict[CommandKind, Callable[[PlannedCommand], Awaitable[None]]] = {
            "grant": self._grant,
            "correct": self._correct,
            "revoke": self._revoke,
            "suspend": self._suspend,
            "cap": self._cap,
            "voucher": self._redeem,
            "promote": self._promote,
            "refund": self._pay_by_transfer if command.number % 3 == 0 else self._pay,
            "dispute": self._pay,
        }
        return lambda: works[command.kind](command)

    def _account(self, command: PlannedCommand) -> str:
        return self._world.plan.accounts[command.account].name

    async def _grant(self, command: PlannedCommand) -> None:
        reference, amount_nano = f"command {command.number}", command.amount_nano
        effect = self._effect(reference, note=reference)
        effect.may_be(amount_nano)
        email = f"{self._account(command)}@example.org"
        await give_credit(self.store, email, amount_nano, reference, self._now_ms(), COMMAND_LINE, reference=reference)
        effect.must_be(amount_nano)

    async def _correct(self, command: PlannedCommand) -> None:
        """Take credit back; in some runs, all that is there, so that payments that are returned later leave debts."""
        reference, amount_nano = f"command {command.number}", -command.amount_nano
        if self._world.plan.theme == "owing" and command.number % 2:
            amount_nano = self._all_that_is_left(command, reference)
        await self._correct_by(command, reference, amount_nano)

    def _all_that_is_left(self, command: PlannedCommand, reference: str) -> int:
        account = self._world.checks.money.account(self._account(command))
        left_nano = account.balance_nano - sum(account.debts.values())
        return self._taken_nano.setdefault(reference, -left_nano or -command.amount_nano)

    async def _correct_by(self, command: PlannedCommand, reference: str, amount_nano: int) -> None:
        effect = self._effect(reference, note=reference)
        effect.may_be(amount_nano)
        email, now_ms = f"{self._account(command)}@example.org", self._now_ms()
        await correct_credit(self.store, email, amount_nano, reference, COMMAND_LINE, now_ms, reference)
        effect.must_be(amount_nano)

    def _effect(self, name: str, *sources: str, note: str = "") -> Effect:
        return self.effects.setdefault(name, Effect(sources, note))

    async def _revoke(self, command: PlannedCommand) -> None:
        key_id, now_ms = key_name(command.account, command.key), self._now_ms()
        self.maybe_revoked.add(key_id)
        await make_change(self.store, lambda tx: keys.revoke(tx, key_id, now_ms))
        if key_id not in self.revoked_s:
            self.revoked_s[key_id] = self._world.scheduler.now_s
            self._world.try_revoked(command)

    async def _suspend(self, command: PlannedCommand) -> None:
        """Suspending an account is as if all of its keys were revoked."""
        ids = [key_name(command.account, key) for key in range(len(self._world.plan.accounts[command.account].ends_ms))]
        self.maybe_revoked.update(ids)
        await suspend_account(self.store, f"{self._account(command)}@example.org", COMMAND_LINE, self._now_ms())
        is_first = ids[command.key] not in self.revoked_s
        for key_id in ids:
            self.revoked_s.setdefault(key_id, self._world.scheduler.now_s)
        if is_first:
            self._world.try_revoked(command)

    def _repay(self, command: PlannedCommand) -> Callable[[], Awaitable[None]]:
        """Refund a request that was charged: all of it, or a third. One that a late end corrected comes first."""
        money = self._world.checks.money
        charged = money.refundable(self._account(command))
        if not charged:
            return lambda: asyncio.sleep(0)
        completion_id, now_ms = charged[command.number % len(charged)], self._now_ms()
        part_nano = max(1, money.charged[completion_id].cost_nano // 3) if command.number % 3 else None
        money.charged[completion_id].refunds.append(part_nano)

        async def repay() -> None:
            await refund_request(self.store, completion_id, part_nano, "a reason", COMMAND_LINE, now_ms)
            self.repaid.add(completion_id)

        return repay

    async def _promote(self, command: PlannedCommand) -> None:
        """Grant credit that expires soon. The commands that grant know days only."""
        account_id, note, now_ms = self._account(command), f"promotion {command.number}", self._now_ms()
        expires_at = self._world.checks.money.expiries_ms.setdefault(
            (account_id, note), now_ms + (3_000, 6_000, 11_000)[command.number % 3]
        )
        effect = self._effect(note, note)
        effect.may_be(command.amount_nano)
        move = CreditMove(account_id, "grant", command.amount_nano, note, now_ms, note, expires_at=expires_at)
        with contextlib.suppress(StoreRefused):  # the source has given credit before
            await self.store.transact(lambda tx: credit.give(tx, move))
        effect.must_be(command.amount_nano)

    async def _cap(self, command: PlannedCommand) -> None:
        account_id, key_id, now_ms = self._account(command), key_name(command.account, command.key), self._now_ms()
        period: Period = "month" if self._world.plan.accounts[command.account].is_monthly else "total"
        cap = Cap(command.amount_nano, period) if command.amount_nano < DOLLAR_NANO else None
        changes = self.caps[key_id]
        changes.append(CapChange(cap, float("inf")))  # until it returns
        await make_change(self.store, lambda tx: set_cap(tx, account_id, key_id, cap, now_ms))
        changes.append(CapChange(cap, self._world.scheduler.now_s))

    async def _redeem(self, command: PlannedCommand) -> None:
        """Make a voucher, and let two accounts redeem it."""
        code = normal_code(f"{command.number:020d}")
        assert code
        name, now_ms, amount_nano = f"voucher {command.number}", self._now_ms(), command.amount_nano
        if name not in self.effects:
            self._effect(name, name).may_be(amount_nano)
            voucher = Voucher(id=name, prefix=code_prefix(code), amount_nano=amount_nano, created_at=now_ms)
            await self.store.transact(lambda tx: vouchers.add_all(tx, [(digest_code(code), voucher)]))
        count = len(self._world.plan.accounts)
        names = [self._world.plan.accounts[(command.account + number) % count].name for number in range(2)]
        redeemed = await asyncio.gather(
            *[redeem_voucher(self.store, Owner(account, account), code, now_ms) for account in names],
            return_exceptions=True,
        )
        if any(isinstance(one, Redeemed) for one in redeemed):
            self.effects[name].must_be(amount_nano)
        for error in redeemed:
            if isinstance(error, BaseException):
                raise error

    async def _pay_by_transfer(self, command: PlannedCommand) -> None:
        """A bank transfer that is refunded in two parts. It is recorded once: a repetition is refused."""
        number, now_ms = command.number, self._now_ms()
        reference, email = f"transfer {number}", f"{self._account(command)}@example.org"
        transfer = Transfer(max(2, command.amount_nano // NANO_PER_CENT) * NANO_PER_CENT, reference)
        effect = self._effect(reference, note=f"bank transfer {reference}")
        effect.may_be(transfer.amount_nano)
        with contextlib.suppress(ControlError):
            await record_transfer(self.store, email, transfer, COMMAND_LINE, now_ms)
            effect.must_be(transfer.amount_nano)
        for name, part_nano in ((f"{reference} first", NANO_PER_CENT), (f"{reference} rest", None)):
            await asyncio.sleep(PAUSES_S[number % len(PAUSES_S)])
            taken_nano = part_nano or transfer.amount_nano - NANO_PER_CENT
            effect = self._effect(name, note=f"refund {name} of bank transfer {reference}: {name}")
            effect.may_be(-taken_nano)
            await refund_transfer(self.store, TransferRefund(reference, part_nano, name, name), COMMAND_LINE, now_ms)
            effect.must_be(-taken_nano)

    async def _pay(self, command: PlannedCommand) -> None:
        """A card payment that is refunded in two parts, or disputed. Each repetition sends all events again."""
        number, amount_nano, now_ms = command.number, command.amount_nano, self._now_ms()
        name, pause_s = f"payment {number}", PAUSES_S[number % len(PAUSES_S)]
        if name not in self.effects:
            self._effect(name, name)
            of, checkout = self._account(command), f"checkout {number}"
            payment = Payment(name, of, PROVIDER, checkout, amount_nano, now_ms, now_ms)
            await self.store.transact(lambda tx: payments.add(tx, payment))
        if await self._event(name, "paid", Paid(amount_nano), self.effects[name], amount_nano) == "unknown payment":
            return  # it is being begun by another repetition: a refund before the payment would take nothing
        await asyncio.sleep(pause_s)
        if command.kind == "refund":
            part_nano = amount_nano // 3
            for total_nano, more_nano in ((part_nano, part_nano), (amount_nano, amount_nano - part_nano)):
                event = f"refunded {total_nano}"
                effect = self._effect(f"{name} {event}", f"{name} {event}")
                await self._event(name, event, Refunded(total_nano), effect, -more_nano)
                await asyncio.sleep(pause_s)
            return
        if number % 4 == 0:  # what is disputed becomes a debt
            taken = f"command {number} takes all"
            await self._correct_by(command, taken, self._all_that_is_left(command, taken))
        dispute = f"dispute {number}"
        effect = self._effect(dispute, dispute, f"{dispute}:closed")
        await self._event(name, "disputed", Disputed(dispute, amount_nano), effect, -amount_nano)
        await asyncio.sleep(pause_s)
        is_won = number % 2 == 0
        closed = DisputeClosed(dispute, amount_nano, "won" if is_won else "lost")
        await self._event(name, "closed", closed, effect, 0 if is_won else -amount_nano)

    async def _event(self, payment: str, kind: str, fact: Fact, effect: Effect, amount_nano: int) -> Result:
        effect.may_be(amount_nano)
        event = PaymentEvent(f"{payment} {kind}", kind, PaymentIds(payment_id=payment), fact)
        result = await apply_event(self.store, PROVIDER, event, self._now_ms())
        if result == "done":
            effect.must_be(amount_nano)
        return result


def key_name(account: int, key: int) -> str:
    return f"key_{account}_{key}"
