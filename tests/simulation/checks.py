"""The invariants: what must be true after every commit, for every request, and once the faults have ended."""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from cadenza.core.records import Cap
from cadenza.core.spans import month_of
from cadenza.ledger.rules import HeldCredit, Repeated
from tests.simulation.clients import Chat
from tests.simulation.commands import CapChange
from tests.simulation.database import Changes
from tests.simulation.final_store import check_final_store
from tests.simulation.oracle import MoneyModel
from tests.simulation.plan import CHARS_PER_TOKEN, IDLE, PROBE_TOKENS, PlannedFault, PlannedRequest
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

AFTER_FAULT_S = 15.0  # so long after a fault, requests may still be refused
AFTER_LOCK_S = 2.0  # and so long after a stranger has unlocked their account
WAIT_S_MAX = 3.0  # how long an undisturbed request may wait for the ledger
FREED_S = 10.0  # so long after its death, nothing of a process is left, except of locked accounts
UNMARKED_S = 1.0  # what a killed stream delivered before that is charged
MARKS_AGAIN_S = 5.0  # so long after a fault, streams are marked again
CHARGE_S = 3.0  # no transaction that charges takes longer
EXPIRED_MS = 25_000  # so long after its time, all granted credit that expired is taken
USED_S = 1.0  # so long after a request that was not charged, its idempotency key is free
RICH_NANO = 100_000_000_000  # no run can spend as much
ACCOUNT_COLUMNS = {"accounts": "id", "reserves": "account_id"}
CLOCKS_MS = 7_200_000 + 1_000  # how far a fault sets a clock ahead, at most
PROBE = 1_000_000  # the numbers of requests that try whether everything is served again


class BrokenRule(msgspec.Struct, frozen=True):
    """An invariant that does not hold."""

    rule: str
    detail: str
    at_s: float


class FaultSpan(msgspec.Struct):
    """The time in which a fault may disturb requests."""

    fault: PlannedFault
    begin_s: float
    end_s: float


class Checks:
    """Watches one run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.broken: list[BrokenRule] = []
        self._faults: list[FaultSpan] = []
        self._lost: list[tuple[float, float]] = []  # times whose commits a failover lost
        self.money = MoneyModel(self.fail)
        if any(fault.kind == "clock" for fault in world.plan.faults):
            self.money.clocks_ms = CLOCKS_MS
        self._charged_s: dict[str, float] = {}  # when the charge of a request was committed
        self._rows = world.database.rows

    @property
    def has_lost_commits(self) -> bool:
        return bool(self._lost)

    def fail(self, rule: str, detail: str) -> None:
        self.broken.append(BrokenRule(rule, detail, round(self._world.scheduler.now_s, 4)))
        self._world.scheduler.is_stopped = True
        self._world.note(lambda: f"BROKEN: {rule}: {detail}")

    # After every commit

    def after_commit(self, changes: Changes) -> None:
        """Check the accounts that were changed, and those whose reserves were."""
        for account_id in dict.fromkeys(_changed_accounts(changes)):
            self._check_account(account_id)
            self._world.watch.account_changed(account_id)

    def follow_money(self, changes: Changes) -> None:
        """Let the model of all accounts follow a commit. A failover that loses commits ends this."""
        if self._lost:
            return
        rows = defaultdict[str, list[tuple[Any, Any]]](list)
        for table, before, after in changes:
            if after:
                rows[table].append((before, after))
        for _, entry in rows["entries"]:
            if entry["kind"] == "charge":
                self._charged_s[entry["completion_id"]] = self._world.scheduler.now_s
        self.money.commit([new for _, new in rows["entries"]], [new for _, new in rows["debts"]], rows["accounts"])

    def _check_account(self, account_id: str) -> None:
        [account] = self._rows("accounts", id=account_id)
        reserves_nano = [row["amount_nano"] for row in self._rows("reserves", account_id=account_id)]
        balance_nano, held_nano, debt_nano = account["balance_nano"], account["held_nano"], account["debt_nano"]
        reserved_nano = sum(reserves_nano)
        if reserves_nano and min(reserves_nano) < 0:
            self.fail("nothing is negative", f"a reserve of {account_id}")
        if not 0 <= held_nano <= balance_nano:
            self.fail("what is held is covered by the balance", f"{account_id}: {held_nano} of {balance_nano}")
        if held_nano != reserved_nano:
            self.fail("what is held is the sum of the reserves", f"{account_id}: {held_nano}, {reserved_nano}")
        if debt_nano < 0 or (debt_nano and balance_nano > held_nano):
            self.fail("an account with a debt has no free credit", account_id)

    # Requests

    def _has_expired(self, chat: Chat) -> bool:
        end_ms = self._world.plan.accounts[chat.request.account].ends_ms[chat.request.key]
        return end_ms is not None and chat.checked_ms >= self._world.plan.start_ms + end_ms

    def accepted(self, chat: Chat) -> None:
        if self._has_expired(chat):
            self.fail("a key that has expired is not accepted", f"{chat.completion_id}: {chat.key_id}")
        chat.is_thawed = chat.process.is_thawing
        revoked_s = self._world.operator.revoked_s.get(chat.key_id)
        if revoked_s is None or chat.started_s <= revoked_s or self._is_lost(revoked_s):
            return
        if not chat.is_thawed:
            self.fail("a revoked key is not accepted", f"{chat.completion_id}: {chat.key_id} on {chat.process.name}")

    def delivered(self, chat: Chat) -> None:
        """The client has the last byte: its charge is durable by now."""
        charged_nano = self._charged_now(chat.completion_id) or 0
        if not self._is_paid(chat, charged_nano):
            detail = f"{chat.completion_id} on {chat.process.name}: {charged_nano} of {chat.due_nano}"
            self.fail("a reply is charged before its last byte is sent", detail)

    def ended(self, chat: Chat) -> None:
        if chat.status == 401 and not self._has_expired(chat) and chat.key_id not in self._world.operator.maybe_revoked:
            self.fail("a good key is accepted", f"{chat.completion_id}: {chat.key_id} on {chat.process.name}")
        is_quick = (chat.status != 429 or chat.is_limited) and chat.waited_s <= WAIT_S_MAX
        if (is_quick and not isinstance(chat.answer, Repeated)) or self.is_disturbed(chat):
            return
        if chat.status == 429 and not chat.is_limited:
            self.fail("an undisturbed request is served", f"{chat.completion_id}: the store was unavailable")
        if chat.waited_s > WAIT_S_MAX:
            self.fail("an undisturbed request is served", f"{chat.completion_id} waited for {chat.waited_s:.2f} s")
        if isinstance(chat.answer, Repeated):
            self._check_repeated(chat, chat.answer)

    def _check_repeated(self, chat: Chat, answer: Repeated) -> None:
        """A request is refused because of its idempotency key only if another one was charged, or still runs."""
        used_by = self._world.chat_of[answer.completion_id]
        has_ended = used_by.ended_s is not None and used_by.ended_s < chat.started_s - USED_S
        if has_ended and self._charged_now(used_by.completion_id) is None:
            self.fail("a key is used only by a charged request", f"{chat.completion_id}, {used_by.completion_id}")

    def _charged_now(self, completion_id: str) -> int | None:
        """What the store has as the cost of a request; None if it was not charged."""
        rows = self._rows("usage", completion_id=completion_id)
        return rows[0]["cost_nano"] or None if rows else None

    # Faults

    def fault_began(self, fault: PlannedFault) -> None:
        now_s = self._world.scheduler.now_s
        is_lock = fault.kind == "lock" and self._world.plan.database == "postgres"
        end_s = math.inf if is_lock else now_s + max(fault.lasts_s, 1.0) + AFTER_FAULT_S
        self._faults.append(FaultSpan(fault, now_s, end_s))
        if self._world.limits:
            self._world.limits.fault_began(fault.kind, fault.lasts_s)
        if fault.kind == "lost tail":
            self._lost.append((now_s - 0.5, now_s + AFTER_FAULT_S))

    def lock_ended(self, fault: PlannedFault) -> None:
        for span in self._faults:
            if span.fault is fault:
                span.end_s = self._world.scheduler.now_s + AFTER_LOCK_S

    def was_disturbed(self, since_s: float) -> bool:
        """Whether anything but a lock went wrong since then, or shortly before."""
        return any(span.end_s >= since_s for span in self._faults if span.fault.kind != "lock")

    def is_disturbed(self, chat: Chat) -> bool:
        return self._is_disturbed(chat.request.account, chat.started_s)

    def _is_disturbed(self, account: int, since_s: float, *, locks_only: bool = False) -> bool:
        """Whether something went wrong since then. On Postgres a lock disturbs only its account."""
        is_postgres, now_s = self._world.plan.database == "postgres", self._world.scheduler.now_s
        return any(
            span.begin_s <= now_s and since_s <= span.end_s
            for span in self._faults
            if not locks_only or span.fault.kind == "lock"
            if not is_postgres or span.fault.kind != "lock" or span.fault.account == account
        )

    def died(self, process: Process, running: list[Chat]) -> None:
        """A process is killed. What its streams delivered a while ago is marked, and will be charged."""
        now_s = self._world.scheduler.now_s
        is_hindered = any(now_s < span.begin_s + span.fault.lasts_s + MARKS_AGAIN_S for span in self._faults)
        for chat in running:
            delivered = [tokens for at_s, tokens in chat.deliveries if at_s < now_s - UNMARKED_S]
            if delivered and not is_hindered and chat.registered_as == process.presence.name:
                chat.marked_nano = chat.price.cost(chat.prompt_tokens, delivered[-1])
        if process.state != "starting":
            self._world.scheduler.after(FREED_S, self._check_freed, process, now_s)

    def _check_freed(self, process: Process, died_s: float) -> None:
        """What a dead process held is free, except of locked accounts."""
        if any(span.fault.kind != "lock" and span.end_s > died_s and span.begin_s != died_s for span in self._faults):
            return
        name, accounts = process.presence.name, self._world.plan.accounts
        locked = {
            one.name for number, one in enumerate(accounts) if self._is_disturbed(number, died_s, locks_only=True)
        }
        of_key = {row["id"]: row["account_id"] for row in self._rows("keys")}
        for table in ("reserves", "marks", "idempotency", "cap_holds"):
            for row in self._rows(table):
                account_id = row["account_id"] if table != "cap_holds" else of_key[row["key_id"]]
                if row["process"] == name and account_id not in locked:
                    self.fail("what a dead process held is freed", f"{process.name}: {table} of {account_id}")

    def _is_lost(self, at_s: float | None) -> bool:
        """Whether what was committed at this time may have been lost by a failover."""
        return at_s is None or any(begin_s <= at_s <= end_s for begin_s, end_s in self._lost)

    # At the end

    def begin_probes(self) -> None:
        """Every key is tried, those without a cap on every process, once the faults have ended."""
        world = self._world
        for number, process in enumerate(world.processes):
            if process.state != "serving":
                self.fail("every process serves again", f"{process.name} is {process.state}")
            for account, planned in enumerate(world.plan.accounts):
                for key in range(len(planned.caps_nano)):
                    is_asked = number == key % len(world.processes)
                    if is_asked or (key == 0 and planned.name != IDLE):
                        world.send(small_request(PROBE + number * 1_000 + account * 10 + key, number, account, key))

    def at_end(self) -> None:
        if self.broken:
            return
        charged, idempotent = self._charges(), defaultdict[tuple[str, str], list[str]](list)
        by_id = self._world.chat_of
        for completion_id in charged.keys() - by_id.keys():
            self.fail("only requests are charged", completion_id)
        for chat in self._world.chats:
            self._check_chat(chat, charged.get(chat.completion_id, 0))
            if chat.idempotency and charged.get(chat.completion_id):
                idempotent[chat.account_id, chat.idempotency].append(chat.completion_id)
        for (account_id, name), ids in idempotent.items():
            if len(ids) > 1 and not any(self._is_lost(by_id[one].ended_s) for one in ids):
                self.fail("one idempotency key is charged once", f"{account_id} {name}: {ids}")
        self._check_keys({*charged})
        self._check_caps(charged)
        self._check_probes()
        self._check_left()
        self._check_effects()
        self._check_prices()
        if not self._lost:
            self.money.check_refunds(self._world.operator.repaid)
            self.money.check_expired(min(process.now_ms() for process in self._world.processes) - EXPIRED_MS)
        if self._world.limits:
            self._world.limits.at_end()
        check_final_store(self._world.database, self.fail)

    def _charges(self) -> dict[str, int]:
        """What each request was charged, less what was corrected."""
        charged, count = defaultdict[str, int](int), defaultdict[str, int](int)
        for row in self._rows("entries"):
            if (completion_id := row["completion_id"]) and row["origin"] != "refund":
                charged[completion_id] -= row["amount_nano"]
                count[completion_id] += row["kind"] == "charge"
                if count[completion_id] > 1:
                    self.fail("a request is charged at most once", completion_id)
        return charged

    def _check_chat(self, chat: Chat, charged_nano: int) -> None:
        name, process = f"{chat.completion_id} on {chat.process.name}", chat.process
        if chat.ended_s is None and process.state != "gone":
            self.fail("every request ends", name)
        if charged_nano and not chat.is_asked:
            self.fail("nobody pays for what no upstream was asked", name)
        if self._is_lost(chat.ended_s) and self._lost:
            return
        if self._exceeds_hold(chat) and chat.request.upstream != "counts more":
            self.fail("no answer costs more than what is held", f"{name}: {chat.due_nano}, {chat.answer}")
        if chat.is_whole and not self._is_paid(chat, charged_nano):
            self.fail("a whole reply is charged what is due", f"{name}: {charged_nano} of {chat.due_nano}")
        if charged_nano > (most_nano := self._most(chat)):
            self.fail("nobody pays for more than was delivered", f"{name}: {charged_nano} of {most_nano}")
        if process.state != "gone" and isinstance(chat.answer, HeldCredit):
            if chat.registered_as == process.presence.name and not process.presence.is_swept:
                self._check_certain(chat, charged_nano)
            elif chat.due_nano is not None:
                self._check_late(chat, charged_nano)
        if process.state == "gone" and charged_nano < chat.marked_nano and chat.key_id not in self._world.operator.caps:
            self.fail("a killed stream pays for its mark", f"{name}: {charged_nano} of {chat.marked_nano}")

    @staticmethod
    def _exceeds_hold(chat: Chat) -> bool:
        return isinstance(chat.answer, HeldCredit) and (chat.due_nano or 0) > chat.answer.amount_nano

    def _is_paid(self, chat: Chat, charged_nano: int) -> bool:
        """Whether a reply is charged what is due. What is due beyond the hold is charged as far as there is credit."""
        assert chat.due_nano is not None
        assert isinstance(chat.answer, HeldCredit)
        is_rich = self._world.plan.accounts[chat.request.account].credit_nano >= RICH_NANO
        if self._exceeds_hold(chat) and not (is_rich and chat.key_id not in self._world.operator.caps):
            return chat.answer.amount_nano <= charged_nano <= chat.due_nano
        return charged_nano == chat.due_nano

    def _check_certain(self, chat: Chat, charged_nano: int) -> None:
        """A request whose process was not swept is charged exactly what it owes, however it ended."""
        due_nano = chat.due_nano
        if due_nano is None:
            has_text = chat.request.is_stream and chat.delivered_tokens > 0
            is_free = not has_text if chat.has_failed else not chat.is_asked
            due_nano = 0 if is_free else chat.price.cost(chat.prompt_tokens, chat.delivered_tokens if has_text else 0)
        if charged_nano != due_nano and not (chat.due_nano is not None and self._is_paid(chat, charged_nano)):
            rule = (
                "who leaves pays for what was delivered"
                if chat.has_left
                else "a reply that ended is charged what is due"
            )
            self.fail(rule, f"{chat.completion_id} on {chat.process.name}: {charged_nano} of {due_nano}")

    def _check_late(self, chat: Chat, charged_nano: int) -> None:
        """The process of a request was swept. Without a mark it is charged, if it lost neither key nor credit."""
        operator, planned = self._world.operator, self._world.plan.accounts[chat.request.account]
        detail = f"{chat.completion_id} on {chat.process.name}: {charged_nano} of {chat.due_nano}"
        revoked_s, is_late = operator.revoked_s.get(chat.key_id), chat.ended_as != chat.registered_as
        charged_s = self._charged_s.get(chat.completion_id, 0.0)
        is_revoked = revoked_s is not None and revoked_s < charged_s - CHARGE_S
        if is_revoked and is_late and charged_nano and not chat.request.is_stream:
            self.fail("a late end with a revoked key is not charged", detail)
        if chat.idempotency or chat.key_id in operator.caps or chat.key_id in operator.maybe_revoked:
            return
        if planned.credit_nano < RICH_NANO or charged_nano == chat.due_nano:
            return
        if not chat.request.is_stream or not charged_nano:
            self.fail("a late end is charged", detail)

    def _check_keys(self, charged: set[str]) -> None:
        """The idempotency keys of charged requests are used, and no others."""
        if self._lost:
            return
        used = {row["completion_id"] for row in self._rows("idempotency")}
        if wrong := sorted(used - charged):
            self.fail("a key is used only by a charged request", str(wrong[:3]))
        keyed = {chat.completion_id for chat in self._world.chats if chat.idempotency}
        if wrong := sorted(keyed & charged - used):
            self.fail("the key of a charged request stays used", str(wrong[:3]))

    def _check_caps(self, charged: dict[str, int]) -> None:
        """Requests that began after a cap was set spend no more than the cap, in each period."""
        spent = defaultdict[tuple[str, int], int](int)
        in_force = {
            key_id: (changes[0].cap, changes[0].since_s) if len(changes) == 1 else _last_cap(changes)
            for key_id, changes in self._world.operator.caps.items()
        }
        for chat in self._world.chats:
            cap, since_s = in_force.get(chat.key_id, (None, 0.0))
            if cap and chat.started_s > since_s and not chat.is_thawed:
                spent[chat.key_id, month_of(cap.period, chat.started_ms)] += charged.get(chat.completion_id, 0)
        for (key_id, month), spent_nano in spent.items():
            cap, _ = in_force[key_id]
            if cap and spent_nano > cap.limit_nano and not self._lost:
                self.fail("no key spends more than its cap", f"{key_id} in {month}: {spent_nano} of {cap.limit_nano}")

    @staticmethod
    def _most(chat: Chat) -> int:
        believed_tokens = chat.reported_tokens if chat.reported_tokens <= chat.request.prompt_chars + 1024 else 0
        quoted_nano = chat.price.cost(max(chat.prompt_tokens, believed_tokens), chat.delivered_tokens)
        return max(quoted_nano, chat.due_nano or 0)

    def _check_probes(self) -> None:
        """Whether an account or a cap can pay is judged with each hold."""
        revoked = self._world.operator.maybe_revoked
        for chat in self._world.chats:
            is_probe = PROBE <= chat.request.number < 2 * PROBE and chat.key_id not in revoked
            if chat.account_id == IDLE and is_probe and not self._lost and chat.status != 200:
                self.fail(
                    "a request is served if its account can just pay for it", f"{chat.completion_id}: {chat.status}"
                )
            if is_probe and chat.status not in {200, 402} and not self._has_expired(chat):
                self.fail("every account is served again", f"{chat.completion_id}: {chat.status}")

    def _check_left(self) -> None:
        """Nothing is left of requests and processes that have ended."""
        for table in ("reserves", "cap_holds") if self._lost else ("reserves", "cap_holds", "marks"):
            if left := [*self._rows(table)]:
                self.fail("every hold ends", f"{table}: {left[:2]}")
        for row in self._rows("accounts"):
            if row["held_nano"]:
                self.fail("every hold ends", f"{row['id']} has {row['held_nano']} held")
        if not self._lost and (open_keys := [row for row in self._rows("idempotency") if row["process"]]):
            self.fail("every idempotency key is kept or freed", str(open_keys[:2]))
        live = {process.presence.name for process in self._world.processes}
        if dead := [row["name"] for row in self._rows("processes") if row["name"] not in live]:
            self.fail("dead processes are forgotten", str(dead))
        if errors := self._world.operator.loop.errors:
            self.fail("no task fails", f"operator: {errors[0]}")
        for process in [*self._world.processes, *self._world.graves]:
            if process.loop.errors:
                self.fail("no task fails", f"{process.name}: {process.loop.errors[0]}")
            if '"level":"error"' in (text := process.log.getvalue()):
                line = next(one for one in text.splitlines() if '"level":"error"' in one)
                self.fail("nothing is refused by mistake", f"{process.name}: {line}")

    def _check_effects(self) -> None:
        """A command, a voucher and an event of a payment have an effect once, or none if they did not return."""
        if self._lost:
            return
        by_source, by_note = defaultdict[str, int](int), defaultdict[str, int](int)
        debts = {row["id"]: row for row in self._rows("debts")}
        for row in self._rows("entries"):
            origin = debts[row["debt_id"]] if row["debt_id"] else row
            by_source[origin["source"]] += row["amount_nano"]
            by_note[origin["note"]] += row["amount_nano"]
        for row in debts.values():
            by_source[row["source"]] -= row["left_nano"]
            by_note[row["note"]] -= row["left_nano"]
        for name, effect in self._world.operator.effects.items():
            total_nano = sum(by_source[one] for one in effect.sources) + (by_note[effect.note] if effect.note else 0)
            if total_nano not in effect.amounts_nano:
                self.fail("a command takes effect once", f"{name}: {total_nano}, not {sorted(effect.amounts_nano)}")

    def _check_prices(self) -> None:
        """A request has the price of the time at which it began."""
        for row in self._rows("usage"):
            price = self._world.chat_of[row["completion_id"]].price
            if (row["input_nano"], row["output_nano"], row["cached_input_nano"]) != price[1:]:
                self.fail("a request has the price of its time", f"{row['completion_id']}: not {price}")


def small_request(number: int, process: int, account: int, key: int) -> PlannedRequest:
    """A request that tries whether something is served."""
    return PlannedRequest(
        number=number,
        at_s=0.0,
        process=process,
        account=account,
        key=key,
        prompt_chars=PROBE_TOKENS[0] * CHARS_PER_TOKEN,
        max_tokens=PROBE_TOKENS[1],
        output_tokens=5,
        is_stream=True,
        takes_s=0.05,
        upstream="answers",
        leaves_after_s=None,
        idempotency=None,
        tries=1,
    )


def _last_cap(changes: list[CapChange]) -> tuple[Cap | None, float]:
    """The cap that was set last, and since when it was in force; None if that is not certain."""
    later = changes[1:] if not math.isinf(changes[0].since_s) else changes
    if len({change.cap for change in later}) > 1:
        return None, 0.0
    return later[0].cap, min(change.since_s for change in later)


def _changed_accounts(changes: Changes) -> Iterator[str]:
    for table, *versions in changes:
        if name := ACCOUNT_COLUMNS.get(table):
            yield from (row[name] for row in versions if row)
