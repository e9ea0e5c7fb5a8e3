"""The invariants: what must be true after every commit, for every request, and once the faults have ended."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import create_engine

from cadenza.ledger.audit import rules_of
from cadenza.store import schema
from tests.simulation.clients import PRICE, Chat
from tests.simulation.database import RowChanges
from tests.simulation.plan import PlannedFault, PlannedRequest

if TYPE_CHECKING:
    from tests.simulation.world import World

AFTER_FAULT_S = 15.0  # so long after a fault, requests may still be refused
WAIT_S_MAX = 3.0  # how long an undisturbed request may wait for the ledger
THAW_S = 2.5  # how long after a pause of all its clocks a process may take itself for fresh
PROBE = 1_000_000  # the numbers of requests that try whether everything is served again
ACCOUNTS, RESERVES = (schema.metadata.tables[name].c.keys() for name in ("accounts", "reserves"))
ACCOUNT_PLACES = {"accounts": ACCOUNTS.index("id"), "reserves": RESERVES.index("account_id")}
MONEY = itemgetter(*(ACCOUNTS.index(name) for name in ("balance_nano", "held_nano", "debt_nano")))
RESERVE_PLACE = RESERVES.index("amount_nano")
AUDITED = ("accounts", "keys", "entries", "usage", "reserves", "holds", "caps", "cap_holds", "debts")


class BrokenRule(msgspec.Struct, frozen=True):
    """An invariant that does not hold."""

    rule: str
    detail: str
    at_s: float


class Checks:
    """Watches one run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.broken: list[BrokenRule] = []
        self.granted: dict[str, tuple[str, int]] = {}  # commands that returned: the account and the amount
        self._faults: list[tuple[float, float, PlannedFault]] = []
        self._lost: list[tuple[float, float]] = []  # times whose commits a failover lost
        self._find_account = world.model.finder("accounts", "id")
        self._find_reserves = world.model.finder("reserves", "account_id")

    def fail(self, rule: str, detail: str) -> None:
        self.broken.append(BrokenRule(rule, detail, round(self._world.scheduler.now_s, 4)))
        self._world.scheduler.is_stopped = True
        self._world.note(lambda: f"BROKEN: {rule}: {detail}")

    # After every commit

    def after_commit(self, changes: RowChanges) -> None:
        """Check the accounts that were changed, and those whose reserves were."""
        for account_id in dict.fromkeys(_changed_accounts(changes)):
            self._check_account(account_id)

    def _check_account(self, account_id: str) -> None:
        [account] = self._find_account(account_id)
        reserves_nano = [row[RESERVE_PLACE] for row in self._find_reserves(account_id)]
        balance_nano, held_nano, debt_nano = MONEY(account)
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

    def accepted(self, chat: Chat) -> None:
        revoked_s = self._world.revoked_s.get(chat.key_id)
        if revoked_s is None or chat.started_s <= revoked_s or self._is_lost(revoked_s):
            return
        if chat.started_s - chat.process.thawed_s > THAW_S:
            self.fail("a revoked key is not accepted", f"{chat.completion_id}: {chat.key_id} on {chat.process.name}")

    def ended(self, chat: Chat) -> None:
        if (chat.status != 429 and chat.waited_s <= WAIT_S_MAX) or self._is_disturbed(chat):
            return
        if chat.status == 429:
            self.fail("an undisturbed request is served", f"{chat.completion_id}: the store was unavailable")
        if chat.waited_s > WAIT_S_MAX:
            self.fail("an undisturbed request is served", f"{chat.completion_id} waited for {chat.waited_s:.2f} s")

    def fault_began(self, fault: PlannedFault) -> None:
        now_s = self._world.scheduler.now_s
        self._faults.append((now_s, now_s + max(fault.lasts_s, 1.0) + AFTER_FAULT_S, fault))
        if fault.kind == "lost tail":
            self._lost.append((now_s - 0.5, now_s + AFTER_FAULT_S))

    def _is_disturbed(self, chat: Chat) -> bool:
        ended_s = self._world.scheduler.now_s
        return any(
            begin_s <= ended_s and chat.started_s <= end_s
            for begin_s, end_s, fault in self._faults
            if fault.kind != "lock" or self._world.plan.database == "sqlite" or fault.account == chat.request.account
        )

    def _is_lost(self, at_s: float | None) -> bool:
        """Whether what was committed at this time may have been lost by a failover."""
        return at_s is None or any(begin_s <= at_s <= end_s for begin_s, end_s in self._lost)

    # At the end

    def begin_probes(self) -> None:
        """Every account is tried on every process, once the faults have ended."""
        world = self._world
        for number, process in enumerate(world.processes):
            if process.state != "serving":
                self.fail("every process serves again", f"{process.name} is {process.state}")
            for account in range(len(world.plan.accounts)):
                request = PlannedRequest(
                    number=PROBE + number * 100 + account,
                    at_s=world.scheduler.now_s,
                    process=number,
                    account=account,
                    key=0,
                    prompt_chars=40,
                    max_tokens=16,
                    output_tokens=5,
                    is_stream=True,
                    takes_s=0.05,
                    upstream="answers",
                    leaves_after_s=None,
                    idempotency=None,
                    tries=1,
                )
                world.send(request)

    def at_end(self) -> None:
        if self.broken:
            return
        charged, idempotent = self._charges(), defaultdict[tuple[str, str], list[str]](list)
        by_id = {chat.completion_id: chat for chat in self._world.chats}
        for completion_id in charged.keys() - by_id.keys():
            self.fail("only requests are charged", completion_id)
        for chat in self._world.chats:
            self._check_chat(chat, charged.get(chat.completion_id, 0))
            if chat.idempotency and charged.get(chat.completion_id):
                idempotent[chat.account_id, chat.idempotency].append(chat.completion_id)
        for (account_id, name), ids in idempotent.items():
            if len(ids) > 1 and not any(self._is_lost(by_id[one].ended_s) for one in ids):
                self.fail("one idempotency key is charged once", f"{account_id} {name}: {ids}")
        self._check_probes()
        self._check_left()
        self._check_grants()
        self._audit()

    def _charges(self) -> dict[str, int]:
        """What each request was charged, less what was corrected."""
        charged, count = defaultdict[str, int](int), defaultdict[str, int](int)
        for row in self._world.model.table("entries"):
            if completion_id := row["completion_id"]:
                charged[completion_id] -= row["amount_nano"]
                count[completion_id] += row["kind"] == "charge"
                if count[completion_id] > 1:
                    self.fail("a request is charged at most once", completion_id)
        return charged

    def _check_chat(self, chat: Chat, charged_nano: int) -> None:
        name = f"{chat.completion_id} on {chat.process.name}"
        if chat.ended_s is None and chat.process.state != "gone":
            self.fail("every request ends", name)
        if charged_nano and not chat.is_asked:
            self.fail("nobody pays for what no upstream was asked", name)
        if self._is_lost(chat.ended_s) and self._lost:
            return
        is_certain = chat.process.state != "gone" and not chat.process.was_swept
        if chat.is_whole and charged_nano != chat.due_nano:
            self.fail("a whole reply is charged what is due", f"{name}: {charged_nano} of {chat.due_nano}")
        elif chat.due_nano is not None and is_certain and charged_nano != chat.due_nano:
            self.fail("a reply that ended is charged what is due", f"{name}: {charged_nano} of {chat.due_nano}")
        elif charged_nano > (most_nano := self._most(chat)):
            self.fail("nobody pays for more than was delivered", f"{name}: {charged_nano} of {most_nano}")
        elif chat.has_left and chat.is_asked and is_certain and chat.request.upstream not in {"fails", "dies"}:
            least_nano = PRICE.input_nano * chat.prompt_tokens
            if chat.due_nano is None and charged_nano < least_nano:
                self.fail("who leaves pays for the prompt", f"{name}: {charged_nano} of {least_nano}")

    @staticmethod
    def _most(chat: Chat) -> int:
        believed_tokens = chat.reported_tokens if chat.reported_tokens <= chat.request.prompt_chars + 1024 else 0
        quoted_nano = PRICE.quote(max(chat.prompt_tokens, believed_tokens), chat.delivered_tokens)
        return max(quoted_nano, chat.due_nano or 0)

    def _check_probes(self) -> None:
        world = self._world
        money = {row["id"]: row for row in world.model.table("accounts")}
        keys = {row["id"]: row for row in world.model.table("keys")}
        for chat in world.chats:
            if chat.request.number < PROBE or chat.status == 200:
                continue
            row, key = money[chat.account_id], keys[chat.key_id]
            is_payable = row["balance_nano"] > 100 * PRICE.quote(40, 16) and not row["debt_nano"]
            if is_payable and not key["is_capped"] and key["revoked_at"] is None:
                self.fail("every account is served again", f"{chat.completion_id}: {chat.status}")

    def _check_left(self) -> None:
        """Nothing is left of requests and processes that have ended."""
        model = self._world.model
        for table in ("reserves", "cap_holds") if self._lost else ("reserves", "cap_holds", "marks"):
            if left := [*model.table(table)]:
                self.fail("every hold ends", f"{table}: {left[:2]}")
        for row in model.table("accounts"):
            if row["held_nano"]:
                self.fail("every hold ends", f"{row['id']} has {row['held_nano']} held")
        if not self._lost and (open_keys := [row for row in model.table("idempotency") if row["process"]]):
            self.fail("every idempotency key is kept or freed", str(open_keys[:2]))
        live = {process.presence.name for process in self._world.processes}
        if dead := [row["name"] for row in model.table("processes") if row["name"] not in live]:
            self.fail("dead processes are forgotten", str(dead))
        for process in [*self._world.processes, *self._world.graves]:
            if process.loop.errors:
                self.fail("no task fails", f"{process.name}: {process.loop.errors[0]}")
            if '"level":"error"' in (text := process.log.getvalue()):
                line = next(one for one in text.splitlines() if '"level":"error"' in one)
                self.fail("nothing is refused by mistake", f"{process.name}: {line}")

    def _check_grants(self) -> None:
        if self._lost:
            return
        by_note = defaultdict[str, int](int)
        for row in self._world.model.table("entries"):
            if row["kind"] == "grant" and row["note"]:
                by_note[row["note"]] += row["amount_nano"]
        for reference, (account_id, amount_nano) in self.granted.items():
            if by_note[reference] != amount_nano:
                detail = f"{reference} of {account_id}: {by_note[reference]} of {amount_nano}"
                self.fail("a grant that returned was made once", detail)

    def _audit(self) -> None:
        """The rules of `cadenza ledger check`, on a real database with the rows of the model."""
        database = _audit_database()
        for name in AUDITED:
            columns = [*schema.metadata.tables[name].c.keys()]
            database.execute(f"DELETE FROM {name}")
            insert = f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            database.executemany(insert, self._world.model.versions(name))
        for rule, query in rules_of("sqlite").items():
            if found := database.execute(query).fetchone():
                self.fail(rule, str(found))


def _changed_accounts(changes: RowChanges) -> Iterator[str]:
    for row, before in changes:
        if (place := ACCOUNT_PLACES.get(row.table.name)) is not None:
            yield from (version[place] for version in (before, row.committed) if version is not None)


@cache
def _audit_database() -> Any:
    database = sqlite3.connect(":memory:", isolation_level=None)
    engine = create_engine("sqlite://", creator=lambda: database)
    schema.metadata.create_all(engine, tables=[schema.metadata.tables[name] for name in AUDITED])
    database.execute("PRAGMA foreign_keys=OFF")
    return database
