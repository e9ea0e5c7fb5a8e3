"""What every account must have: computed with integers, from the price list and what a run's script gives and takes.

Nothing of the product is imported, so that no rule is compared with itself. The model follows the store commit by
commit. An entry says what moved and why; the model says how much of it is granted credit, which debt it may pay, what a
refund may give back and what expires, and what balance, granted part and debt are left.

- Granted credit is spent before paid credit, and of it what expires first. A payment that is refunded or disputed, and
  a debt, take paid credit first.
- A refund gives back paid credit first, and no more than the request cost. A correction lowers what it cost.
- Debts are paid in the order in which they were made.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]
Fail = Callable[[str, str], None]
PAID_FIRST = ("return", "dispute", "debt")
NEVER_MS = 2**62
PROMPT_SLACK = 1024  # tokens of a prompt that an upstream may count beyond its characters


class TokenPrice(NamedTuple):
    """What tokens cost from a time on, in nano-dollars each."""

    from_ms: int
    input: int
    output: int
    cached: int

    def cost(self, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> int:
        return (prompt_tokens - cached_tokens) * self.input + cached_tokens * self.cached + output_tokens * self.output

    def affordable(self, credit_nano: int, prompt_tokens: int) -> int:
        """How many tokens of output a credit pays for, after the prompt."""
        return (credit_nano - prompt_tokens * self.input) // self.output


def price_at(prices: Sequence[TokenPrice], now_ms: int) -> TokenPrice:
    """The last price that has begun; the first one if none has."""
    return max([one for one in prices if one.from_ms <= now_ms], default=prices[0])


def reply_cost(price: TokenPrice, upstream: str, prompt_chars: int, output_tokens: int, limit: int) -> int:
    """What a whole reply costs, by what its upstream reports. Counts that cannot be true are replaced by ours."""
    prompt_tokens, cached_tokens = prompt_chars // 4, 0
    match upstream:
        case "lies":
            output_tokens = min(10 * output_tokens, limit)
        case "counts more" if 2 * prompt_tokens <= prompt_chars + PROMPT_SLACK:
            prompt_tokens *= 2
        case "cached":
            cached_tokens = prompt_tokens // 2
    return price.cost(prompt_tokens, output_tokens, cached_tokens)


class Lot:
    """Granted credit, and what was left of it when the account was last given or lost such credit."""

    def __init__(self, left_nano: int, expires_ms: int) -> None:
        self.left_nano = left_nano
        self.most_nano = left_nano  # that a refund can bring back to it
        self.expires_ms = expires_ms


class ChargedRequest:
    """What a request has cost, less what was given back, and the granted part of that."""

    def __init__(self, account_id: str, cost_nano: int, granted_nano: int) -> None:
        self.account_id = account_id
        self.cost_nano = cost_nano
        self.granted_nano = granted_nano
        self.is_corrected = False
        self.is_refunded = False
        self.refunds: list[int | None] = []  # that were sent: the amounts, None for all

    def lower(self, amount_nano: int, granted_nano: int) -> int:
        self.cost_nano -= amount_nano
        self.granted_nano -= granted_nano
        return granted_nano

    def may_refund(self, amount_nano: int) -> bool:
        return amount_nano in self.refunds or (None in self.refunds and amount_nano == self.cost_nano)

    def refund(self, amount_nano: int) -> int:
        """Give back paid credit first. Return the granted part."""
        self.is_refunded = True
        return self.lower(amount_nano, max(0, amount_nano - (self.cost_nano - self.granted_nano)))

    def correct(self, amount_nano: int) -> int:
        """It costs less. The granted part of what it still costs stays spent."""
        self.is_corrected = True
        return self.lower(amount_nano, max(0, self.granted_nano - (self.cost_nano - amount_nano)))


class ModelAccount:
    """The money of one account."""

    def __init__(self) -> None:
        self.balance_nano = 0
        self.granted_nano = 0
        self.debts: dict[int, int] = {}  # what is left of each, in the order in which they were made
        self.lots: list[Lot] = []  # what expires first comes first
        self.is_refilled = False  # granted credit was given back after the time of a lot: it may come to it, or stay

    @property
    def paid_nano(self) -> int:
        return self.balance_nano - self.granted_nano

    def grant(self, amount_nano: int, expires_ms: int) -> None:
        """What was given back beyond the lots until now does not expire."""
        self.settle()
        if rest_nano := self.granted_nano - sum(lot.left_nano for lot in self.lots):
            self.lots.append(Lot(rest_nano, NEVER_MS))
        self.lots.append(Lot(amount_nano, expires_ms))
        self.lots.sort(key=lambda lot: lot.expires_ms)
        self.give(amount_nano, amount_nano)

    def give(self, amount_nano: int, granted_nano: int) -> None:
        """Granted credit that is given back comes to the lot from which it was spent last."""
        self.balance_nano += amount_nano
        self.granted_nano += granted_nano

    def take(self, amount_nano: int, granted_nano: int) -> None:
        self.balance_nano -= amount_nano
        self.granted_nano -= granted_nano

    def settle(self) -> None:
        """From now on, nothing comes back to what was spent until now."""
        for lot, left_nano in zip(self.lots, self._left(), strict=True):
            lot.left_nano = left_nano

    def expired(self, now_ms: int) -> int:
        """What is left of granted credit that has expired."""
        pairs = zip(self.lots, self._left(), strict=True)
        return sum(left_nano for lot, left_nano in pairs if lot.expires_ms <= now_ms)

    def most_expired(self, now_ms: int) -> int:
        """The most that can be left of it, whatever was given back."""
        return sum(lot.most_nano for lot in self.lots if lot.expires_ms <= now_ms)

    def has_lot_before(self, now_ms: int) -> bool:
        return any(lot.expires_ms <= now_ms for lot in self.lots)

    def expire(self, amount_nano: int, now_ms: int) -> None:
        """What has expired is taken from its lots."""
        self.settle()
        for lot in self.lots:
            if lot.expires_ms <= now_ms:
                lot.most_nano -= (part_nano := min(lot.most_nano, amount_nano))
                lot.left_nano = max(0, lot.left_nano - part_nano)
                amount_nano -= part_nano

    def first_left(self) -> int:
        """What is left of the lot that expires first, of those of which something is."""
        return next((left_nano for left_nano in self._left() if left_nano), 0)

    def _left(self) -> list[int]:
        """What is left of each lot: what expires first is spent first."""
        spent_nano, found = max(0, sum(lot.left_nano for lot in self.lots) - self.granted_nano), list[int]()
        for lot in self.lots:
            part_nano = min(lot.left_nano, spent_nano)
            spent_nano -= part_nano
            found.append(lot.left_nano - part_nano)
        return found


class MoneyModel:
    """The money of all accounts of a run."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self.clocks_ms = 0  # how far a process's clock may be ahead
        self.accounts: dict[str, ModelAccount] = {}
        self.expiries_ms: dict[tuple[str, str], int] = {}  # by account and note, of grants that expire
        self.charged: dict[str, ChargedRequest] = {}  # by completion id
        self._granted_of: dict[str, int] = {}  # what sources took of granted credit, with what paid their debts
        self._debts: dict[int, tuple[str, str]] = {}  # the account and source of each debt
        self._in_any_order: set[str] = set()  # accounts of which a batch has corrections, too

    def account(self, account_id: str) -> ModelAccount:
        return self.accounts.setdefault(account_id, ModelAccount())

    def refundable(self, account_id: str) -> list[str]:
        """The requests of an account that cost something: those that are hard to refund rightly, if there are any.

        A late end has corrected them, or they took both granted and paid credit.
        """
        found = {one: of for one, of in self.charged.items() if of.account_id == account_id and of.cost_nano}
        hard = [one for one, of in found.items() if of.is_corrected or 0 < of.granted_nano < of.cost_nano]
        return hard or [*found]

    def check_refunds(self, completion_ids: Iterable[str]) -> None:
        for one in completion_ids:
            if not self.charged[one].is_refunded:
                self._fail("a request is refunded once, by what was said", f"{one}: it was not refunded")

    def check_expired(self, now_ms: int) -> None:
        """Nothing is left of what has expired. What was given back after its time may stay."""
        for account_id, account in self.accounts.items():
            if account.expired(now_ms) and not account.is_refilled:
                self._fail(
                    "what is left of granted credit expires, and no more", f"{account_id}: {account.expired(now_ms)}"
                )

    def commit(self, entries: Iterable[Row], debts: Iterable[Row], accounts: Iterable[tuple[Row | None, Row]]) -> None:
        """A transaction was committed: its new entries, its debts as they are now, its accounts before and after."""
        accounts, entries = list(accounts), sorted(entries, key=lambda row: row["id"])
        held_nano = {after["id"]: before["held_nano"] if before else 0 for before, after in accounts}
        debts = sorted(debts, key=lambda row: row["id"])
        new = [row for row in debts if row["id"] not in self._debts]
        self._cancel_debts(debts, {entry["debt_id"] for entry in entries})
        self._in_any_order = {entry["account_id"] for entry in entries if entry["origin"] == "late-end"}
        for entry in entries:
            self._enter(entry, held_nano.get(entry["account_id"], 0))
        for row in new:
            self._debts[row["id"]] = (row["account_id"], row["source"])
            self.account(row["account_id"]).debts[row["id"]] = row["left_nano"]
        for row in debts:
            self._check_debt(row)
        for _, row in accounts:
            self._check_account(row)

    def _enter(self, entry: Row, held_nano: int) -> None:
        account, amount_nano = self.account(entry["account_id"]), entry["amount_nano"]
        before_nano = account.granted_nano
        if amount_nano > 0:
            self._give(account, entry)
        else:
            self._take(account, entry, held_nano)
        if account.granted_nano - before_nano != entry["granted_nano"]:
            what = f"{entry['account_id']}: {entry['granted_nano']}, not {account.granted_nano - before_nano}"
            self._fail("an entry has the granted part that it must have", f"{what}, of {entry['origin']} {amount_nano}")

    def _give(self, account: ModelAccount, entry: Row) -> None:
        amount_nano, origin, source = entry["amount_nano"], entry["origin"], entry["source"] or ""
        if origin in {"grant", "voucher", "opening"}:
            expires_ms = self.expiries_ms.get((entry["account_id"], entry["note"]), NEVER_MS)
            account.grant(amount_nano, expires_ms)
            return
        granted_nano = 0
        if origin in {"refund", "late-end"}:
            request = self.charged[entry["completion_id"]]
            if amount_nano > request.cost_nano:
                detail = f"{entry['completion_id']}: {amount_nano} of {request.cost_nano}"
                self._fail("nobody gets back more than a request cost", detail)
            if origin == "refund" and (request.is_refunded or not request.may_refund(amount_nano)):
                detail = f"{entry['completion_id']}: {amount_nano} of {request.cost_nano}, {request.refunds}"
                self._fail("a request is refunded once, by what was said", detail)
            granted_nano = request.refund(amount_nano) if origin == "refund" else request.correct(amount_nano)
        elif origin == "dispute":
            granted_nano = min(amount_nano, self._granted_of.pop(source.removesuffix(":closed"), 0))
        elif origin != "payment":
            self._fail("credit has a known origin", f"{origin} {amount_nano}")
        if granted_nano and account.has_lot_before(entry["created_at"] + self.clocks_ms):
            account.is_refilled = True
        account.give(amount_nano, granted_nano)

    def _take(self, account: ModelAccount, entry: Row, held_nano: int) -> None:
        amount_nano, origin, granted_nano = -entry["amount_nano"], entry["origin"], account.granted_nano
        part_nano = max(0, amount_nano - account.paid_nano) if origin in PAID_FIRST else min(amount_nano, granted_nano)
        source = entry["source"]
        if entry["kind"] == "charge":
            if entry["account_id"] in self._in_any_order and 0 <= -entry["granted_nano"] <= amount_nano:
                part_nano = -entry["granted_nano"]  # the corrections of a batch come between its charges
            self.charged[entry["completion_id"]] = ChargedRequest(entry["account_id"], amount_nano, part_nano)
        elif origin == "debt":
            self._pay(account, entry["debt_id"], amount_nano)
            source = self._debts[entry["debt_id"]][1]
        elif origin == "expiry":
            self._check_expiry(account, entry, amount_nano, account.balance_nano - held_nano)
            account.expire(amount_nano, entry["created_at"])
        if source:
            self._granted_of[source] = self._granted_of.get(source, 0) + part_nano
        account.take(amount_nano, part_nano)

    def _pay(self, account: ModelAccount, debt: int, amount_nano: int) -> None:
        oldest = min(account.debts, default=0)
        if debt != oldest:
            self._fail("the oldest debt is paid first", f"debt {debt}, while {oldest} is open")
        account.debts[debt] = account.debts.get(debt, 0) - amount_nano
        if account.debts[debt] <= 0:
            del account.debts[debt]

    def _check_expiry(self, account: ModelAccount, entry: Row, amount_nano: int, free_nano: int) -> None:
        expired_nano = account.expired(entry["created_at"])
        if account.is_refilled:
            is_right = (
                0 < amount_nano <= min(account.most_expired(entry["created_at"]), account.granted_nano, free_nano)
            )
        else:
            is_right = 0 < amount_nano <= expired_nano and amount_nano == min(account.first_left(), free_nano)
        if not is_right:
            detail = f"{entry['account_id']}: {amount_nano} of {expired_nano}, with {free_nano} free"
            self._fail("what is left of granted credit expires, and no more", detail)

    def _cancel_debts(self, rows: Iterable[Row], paid: Container[int | None]) -> None:
        """A dispute that is won cancels what is left of its debt. What it gives back has an entry."""
        for row in rows:
            account_id, source = self._debts.get(row["id"], ("", ""))
            if not row["left_nano"] and row["id"] not in paid and (source or "").startswith("dispute "):
                self.account(account_id).debts.pop(row["id"], None)

    def _check_debt(self, row: Row) -> None:
        account_id, _ = self._debts[row["id"]]
        debts = self.account(account_id).debts
        if row["left_nano"] != debts.get(row["id"], 0):
            detail = f"debt {row['id']} of {account_id}: {row['left_nano']}, not {debts.get(row['id'], 0)}"
            self._fail("a debt is lowered by what is paid of it", detail)

    def _check_account(self, row: Row) -> None:
        account = self.account(row["id"])
        found = row["balance_nano"], row["granted_nano"], row["debt_nano"]
        due = account.balance_nano, account.granted_nano, sum(account.debts.values())
        if found != due:
            detail = f"{row['id']} has {found}, not {due} (balance, granted, debt)"
            self._fail("an account has what its entries give and take", detail)
