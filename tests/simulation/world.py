"""One run: processes, clients, operators and faults on one virtual clock, and the checks after every step."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from cadenza.core.errors import CadenzaError
from cadenza.core.money import Price
from cadenza.core.price_schedules import PriceChange, PriceSchedule
from cadenza.core.records import Cap
from cadenza.ledger import credit as ledger_credit
from cadenza.ledger.cap_rows import set_cap
from cadenza.ledger.origins import CreditMove
from cadenza.observe import places
from cadenza.store.store import StoreUnavailable, Transaction
from cadenza.store.tables import accounts, keys
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.keys import NewKey
from tests.simulation.checks import Checks, small_request
from tests.simulation.clients import Chat, Refusal, serve
from tests.simulation.commands import CapChange, Operator, key_name
from tests.simulation.database import Changes, Database
from tests.simulation.holds import HoldWatch
from tests.simulation.limits import LimitWatch
from tests.simulation.network import Link
from tests.simulation.plan import (
    BUSY_S,
    CHARS_PER_TOKEN,
    PlannedAccount,
    PlannedCommand,
    PlannedFault,
    PlannedRequest,
    RunPlan,
)
from tests.simulation.postgres import PostgresServer
from tests.simulation.process import Machine, Process
from tests.simulation.scheduler import Scheduler
from tests.simulation.sqlite import SqliteFile
from tests.simulation.valkey import SimulatedValkey

LOST_TAIL_S = 0.3
DOWN_S = 1.0
RESTART_S = 0.3
RETRY_S = 0.2
COMMIT_S_ABOUT = 0.001
SWEEP_S = 0.001  # a part of how long a sweep takes
TWO_HOURS_MS = 7_200_000
PROBES_S = 16.0  # so long after the last fault, every account must be served
SETTLED_S = 24.0  # so long after the last fault, everything must be in order
SET_UP_GRANTS = (("late", 14_000), ("early", 4_000), ("kept", 0))  # after so long they expire, of every other account
REVOKED = 2_000_000  # the numbers of requests with a key that was revoked
REVOKED_S = (0.0, 0.02, 0.3, 1.0, 2.2)  # when they are sent, after the revocation returned


class World:
    """Runs a plan. `checks.broken` says what went wrong."""

    def __init__(self, plan: RunPlan, *, is_traced: bool = False) -> None:
        self.plan = plan
        self.trace: list[str] | None = [] if is_traced else None
        self.scheduler = Scheduler(Random(f"schedule {plan.seed}"))
        self.database = Database()
        random = Random(f"database {plan.seed}")
        self.server: PostgresServer | SqliteFile = (
            PostgresServer(self.scheduler, self.database, random)
            if plan.database == "postgres"
            else SqliteFile(self.database, random)
        )
        self.machine = Machine(self.scheduler, random, self.server, plan.start_ms)
        self.limits = LimitWatch(self, plan.limits) if plan.limits else None
        if self.limits:
            self.machine.limits = self.limits
            self.machine.valkey = SimulatedValkey(self.scheduler)
        first, *later = [(one.from_ms, Price(*one[1:])) for one in plan.prices]
        self.prices = PriceSchedule.of(first[1], [PriceChange(*one) for one in later], plan.start_ms)
        self.checks = Checks(self)
        self.database.on_commit.append(self.checks.follow_money)
        self.watch = HoldWatch(self)
        self.chats: list[Chat] = []
        self.chat_of: dict[str, Chat] = {}  # by completion id
        self.running: dict[int, list[Chat]] = {}
        self.processes: list[Process] = []
        self.incarnations = [0] * plan.processes
        self.graves: list[Any] = []  # dead processes: nothing of them may be collected while the run goes on
        self.last_fault_s = 0.0
        self._on_fence: dict[str, Callable[[], None]] = {}  # what happens when a process is fenced, by its name
        self.operator = Operator(self)

    def note(self, text: Callable[[], str]) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.scheduler.now_s:9.4f}  {text()}")

    def run(self) -> None:
        plan, at = self.plan, self.scheduler.at
        is_set_up = self.operator.loop.start(self._set_up())
        self.scheduler.run(0.4)
        if self.checks.broken:
            return
        is_set_up.result()
        self.database.on_commit += [self.checks.after_commit, self._see_fences]
        for number in range(plan.processes):
            self.processes.append(self._begin(number))
        for request in plan.requests:
            at(request.at_s, self.send, request)
        for command in plan.commands:
            at(command.at_s, self.operator.start, command)
        for fault in plan.faults:
            self._plan_fault(fault)
        self.scheduler.run(BUSY_S + 1)
        until_s = max(BUSY_S, self.last_fault_s, *[fault.at_s + fault.lasts_s for fault in plan.faults], 0)
        self.scheduler.run(until_s + PROBES_S)
        self.checks.begin_probes()
        self.scheduler.run(until_s + SETTLED_S)
        self.checks.at_end()

    def end(self) -> None:
        """Kill everything, so that nothing runs when it is thrown away."""
        for process in [*self.processes, *self.graves]:
            process.loop.kill()
        self.operator.loop.kill()

    # Set-up

    async def _set_up(self) -> None:
        def work(tx: Transaction) -> None:
            for number, planned in enumerate(self.plan.accounts):
                account = Account(planned.name, f"{planned.name}@example.org", "forte", 0, 0, self.plan.start_ms)
                accounts.add(tx, account, "hash")
                granted_nano, start_ms = planned.credit_nano // 6 * planned.is_granted, self.plan.start_ms
                for note, expiry_ms in SET_UP_GRANTS if granted_nano else ():
                    expires_at = start_ms + expiry_ms if expiry_ms and number % 2 else None
                    if expires_at:
                        self.checks.money.expiries_ms[planned.name, note] = expires_at
                    given = CreditMove(planned.name, "grant", granted_nano, note, start_ms, expires_at=expires_at)
                    ledger_credit.give(tx, given)
                if paid_nano := planned.credit_nano - granted_nano * len(SET_UP_GRANTS):
                    paid = CreditMove(planned.name, "payment", paid_nano, "", self.plan.start_ms)
                    ledger_credit.give(tx, paid)
                for key, cap_nano in enumerate(planned.caps_nano):
                    self._add_key(tx, number, planned, key, cap_nano)

        await self.operator.store.transact(work)

    def _add_key(self, tx: Transaction, account: int, planned: PlannedAccount, key: int, cap_nano: int | None) -> None:
        key_id = key_name(account, key)
        start_ms, end_ms = self.plan.start_ms, planned.ends_ms[key]
        expires_at = None if end_ms is None else start_ms + end_ms
        new = NewKey(key_id, planned.name, "a key", key_id.ljust(12, "-"), frozenset(), start_ms, expires_at)
        keys.add(tx, new, key_id.encode().ljust(32, b"-"))
        if cap_nano is not None:
            cap = Cap(cap_nano, "month" if planned.is_monthly else "total")
            set_cap(tx, planned.name, key_id, cap, self.plan.start_ms)
            self.operator.caps[key_id].append(CapChange(cap, 0.0))

    # Processes

    def _begin(self, number: int, clock_ms: int = 0) -> Process:
        self.incarnations[number] += 1
        process = Process(self.machine, number, self.incarnations[number])
        process.clock_ms = clock_ms
        process.ledger.watch = self.watch
        self.running[id(process)] = []
        process.start(lambda: self._restart(number))
        return process

    def _restart(self, number: int) -> None:
        if self.processes[number].state == "gone":
            self.graves.append(self.processes[number])
            self.processes[number] = self._begin(number, self.processes[number].clock_ms)
            self.note(lambda: f"process {number} starts again")

    # Requests

    def send(self, request: PlannedRequest, tries: int = 0) -> None:
        """A client sends a request, to another process with each try."""
        process = self.processes[(request.process + tries) % len(self.processes)]
        if process.state != "serving":
            self._retry(request, tries)
            return
        process.loop.call_soon(self._arrive, process, request, tries)

    def _arrive(self, process: Process, request: PlannedRequest, tries: int) -> None:
        name = None if request.idempotency is None else f"idem-{request.account}-{request.idempotency}"
        chat = Chat(
            request,
            f"chatcmpl-{request.number}-{tries}",
            process,
            self.plan.accounts[request.account].name,
            key_name(request.account, request.key),
            name,
            self.scheduler.now_s,
            request.prompt_chars // CHARS_PER_TOKEN,
            self.plan.prices[0],
        )
        self.chats.append(chat)
        self.chat_of[chat.completion_id] = chat
        self.running[id(process)].append(chat)
        task = asyncio.get_running_loop().create_task(self._serve(process, chat, tries))
        if request.leaves_after_s is not None and tries == 0:
            process.loop.call_later(request.leaves_after_s, self._leave, chat, task)

    def _leave(self, chat: Chat, task: "asyncio.Task[None]") -> None:
        if not task.done():
            chat.has_left = True
            self.note(lambda: f"{chat.completion_id} client leaves")
            task.cancel()

    async def _serve(self, process: Process, chat: Chat, tries: int) -> None:
        try:
            await serve(self, process, chat, chat.key_id.encode().ljust(32, b"-"))
            chat.status = 200
        except (Refusal, CadenzaError) as error:
            chat.status = error.status
        except StoreUnavailable:
            chat.status = 429
        except asyncio.CancelledError:
            chat.status = 499
        except Exception as error:  # noqa: BLE001 it is reported
            chat.status = 500
            self.checks.fail("no request meets an internal error", f"{chat.completion_id}: {places(error)} {error!r}")
        chat.ended_s, chat.ended_as = self.scheduler.now_s, process.presence.name
        self.watch.charged(chat.completion_id)
        self.checks.ended(chat)
        self.note(lambda: f"{chat.completion_id} on {process.name} ends with {chat.status}")
        self.running[id(process)].remove(chat)
        if chat.status >= 429 and not chat.has_left:
            self._retry(chat.request, tries)

    def _retry(self, request: PlannedRequest, tries: int) -> None:
        if tries + 1 < request.tries and self.scheduler.now_s < BUSY_S + 10:
            self.scheduler.after(RETRY_S * (tries + 1), self.send, request, tries + 1)

    def accepted(self, chat: Chat) -> None:
        """The key of a request was accepted."""
        self.checks.accepted(chat)

    def asked(self, chat: Chat) -> None:
        """An upstream was asked."""
        chat.is_asked = True
        self.note(lambda: f"{chat.completion_id} on {chat.process.name} asks its upstream")

    def whole(self, chat: Chat) -> None:
        """The client got the last byte."""
        chat.is_whole = True
        self.checks.delivered(chat)

    def try_revoked(self, command: PlannedCommand) -> None:
        """A revocation has returned: the key is tried on every process, now and a little later."""
        for number, delay_s in enumerate(REVOKED_S):
            for process in range(len(self.processes)):
                probe = REVOKED + command.number * 1_000 + number * 100 + process
                request = small_request(probe, process, command.account, command.key)
                self.scheduler.after(delay_s, self.send, request)

    # Faults

    def _plan_fault(self, fault: PlannedFault) -> None:
        if fault.commands_until is None:
            self.scheduler.at(fault.at_s, self._fault, fault)
        else:
            self._fault_by_count(fault)

    def _fault_by_count(self, fault: PlannedFault) -> None:
        """Let it happen in the middle of what a process does, at its n-th command to the store."""
        process, link = self._target(fault)
        assert fault.commands_until is not None
        if link.sent >= fault.commands_until:
            self._fault(fault)
        elif link.trap is None and (process is None or process.state != "gone"):
            delay_s = fault.number % 4 * COMMIT_S_ABOUT  # before a commit, or between it and its answer
            link.trap = (fault.commands_until, lambda: self.scheduler.after(delay_s, self._fault, fault))
        else:
            self.scheduler.after(1.0, self._fault_by_count, fault)

    def _target(self, fault: PlannedFault) -> tuple[Process | None, Link]:
        """The process that a fault meets, or None for the operator, and its way to the store."""
        process = self.processes[fault.process] if fault.process < len(self.processes) else None
        return process, process.link if process else self.operator.link

    def _fault(self, fault: PlannedFault) -> None:
        (process, link), kind = self._target(fault), fault.kind
        if self.scheduler.now_s > BUSY_S:
            return
        if process and process.state == "gone" and kind not in {"lock", "full", "failover", "lost tail"}:
            return
        where = f"{process.name if process else 'operator'}, account {fault.account}"
        self.note(lambda: f"fault {fault.number}: {kind} of {where}, for {fault.lasts_s:.2f} s")
        now_s, lasts_s, after = self.scheduler.now_s, fault.lasts_s, self.scheduler.after
        self.last_fault_s = max(self.last_fault_s, now_s + lasts_s)
        if process and kind in {"crash", "lost machine"}:
            self.checks.died(process, self.running[id(process)])
        self.checks.fault_began(fault)
        match kind:
            case "cut":
                link.cut()
                self._until(fault, process, link.heal)
            case "slow":
                link.slowness = 100.0
                after(lasts_s, setattr, link, "slowness", 1.0)
            case "reset":
                link.break_all()
            case "lock" | "theft" | "full" | "failover" | "lost tail":
                self._fault_of_store(fault)
            case _:
                assert process
                self._fault_of_process(fault, process)

    def _fault_of_process(self, fault: PlannedFault, process: Process) -> None:
        kind, lasts_s, after, number = fault.kind, fault.lasts_s, self.scheduler.after, fault.process
        match kind:
            case "crash" | "lost machine":
                process.die(is_machine_lost=kind == "lost machine")
                after(min(lasts_s, RESTART_S), self._restart, number)
            case "stop" | "sleep" | "freeze":
                process.pause(kind)
                self._until(fault, process, lambda: process.resume(kind))
            case "clock":
                process.clock_ms += TWO_HOURS_MS if fault.number % 3 == 0 else round((lasts_s - 5) * 10_000)
            case "cut valkey" | "slow valkey" | "restart valkey":
                self._fault_of_valkey(fault, process)
            case "drain":
                running = self.running[id(process)]
                process.loop.start(process.drain(lambda: not running))
                self._restart_when_gone(number)

    def _fault_of_valkey(self, fault: PlannedFault, process: Process) -> None:
        valkey, limits, after = self.machine.valkey, process.limits, self.scheduler.after
        assert valkey
        assert limits
        match fault.kind:
            case "cut valkey":
                limits.link.cut()
                after(fault.lasts_s, limits.link.heal)
            case "slow valkey":
                limits.link.slowness = 100.0
                after(fault.lasts_s, setattr, limits.link, "slowness", 1.0)
            case "restart valkey":
                valkey.go_down()
                after(fault.lasts_s, valkey.come_up_empty)

    def _until(self, fault: PlannedFault, process: Process | None, end: Callable[[], None]) -> None:
        """End a fault after its time, or, if its process is fenced before, while it is swept."""
        is_over = False

        def end_once() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                end()

        self.scheduler.after(fault.lasts_s, end_once)
        if process and fault.number % 2:
            self._on_fence[process.presence.name] = lambda: self.scheduler.after(SWEEP_S * fault.lasts_s, end_once)

    def _see_fences(self, changes: Changes) -> None:
        for table, _, row in changes:
            if table == "processes" and row and row["beats"] < 0:
                self._on_fence.pop(row["name"], lambda: None)()

    def _fault_of_store(self, fault: PlannedFault) -> None:
        match fault.kind:
            case "lock":
                self._lock(fault)
            case "theft":
                self._steal(fault)
            case "full":
                self.server.is_full = True
                self.scheduler.after(fault.lasts_s, setattr, self.server, "is_full", False)
            case "failover" | "lost tail":
                self._fail_over(loses_tail=fault.kind == "lost tail")

    def _restart_when_gone(self, number: int) -> None:
        if self.processes[number].state == "gone":
            self._restart(number)
        else:
            self.scheduler.after(0.5, self._restart_when_gone, number)

    def _lock(self, fault: PlannedFault) -> None:
        """A stranger locks the row of an account, or, on SQLite, the whole file."""
        server = self.server
        if isinstance(server, SqliteFile):
            if server.writer is None:
                server.writer = self
                self.scheduler.after(min(fault.lasts_s, 4.0), setattr, server, "writer", None)
            return
        account_id = self.plan.accounts[fault.account].name
        server.lock(account_id)

        def end() -> None:
            server.unlock(account_id)
            self.checks.lock_ended(fault)

        self.scheduler.after(fault.lasts_s, end)

    def _steal(self, fault: PlannedFault) -> None:
        stolen = {"account": self.plan.accounts[fault.account].name, "amount": 1, "granted": 0}
        self.database.transact(lambda tx: tx.change(ledger_credit.TAKE, stolen))

    def _fail_over(self, *, loses_tail: bool) -> None:
        server = self.server
        assert isinstance(server, PostgresServer)
        state = self.database.copy() if loses_tail else None

        def fail() -> None:
            server.go_down()
            self.scheduler.after(DOWN_S, come_up)

        def come_up() -> None:
            if state is not None:
                self.database.restore(state)
            server.is_down = False
            self.note(lambda: "the store is up again")

        self.scheduler.after(LOST_TAIL_S if loses_tail else 0.0, fail)
