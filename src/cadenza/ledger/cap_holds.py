"""What the running requests of this process hold of the caps of their keys: its copy of the rows in `cap_holds`."""

from collections.abc import Iterable

from cadenza.ledger.caps import NO_CAP_USE, CapUse
from cadenza.ledger.rules import End, Hold


class CapHolds:
    """What the requests in flight hold of the caps of their keys, by account and completion id."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, tuple[str, int]]] = {}
        self._doubtful: dict[str, set[str]] = {}  # by account: keys for which the store may have another amount

    def __contains__(self, account_id: str) -> bool:
        return account_id in self._held

    def use(self, account_id: str, ending: Iterable[End]) -> CapUse:
        """What the process holds when these requests end."""
        held, doubtful = self._held.get(account_id), self._doubtful.get(account_id)
        if not held and not doubtful:
            return NO_CAP_USE
        kept_nano, ending_nano, ends = (
            dict.fromkeys(doubtful or (), 0),
            dict[str, int](),
            {end.hold.completion_id for end in ending},
        )
        for completion_id, (key_id, amount_nano) in (held or {}).items():
            if completion_id in ends:
                ending_nano[completion_id] = amount_nano
            else:
                kept_nano[key_id] = kept_nano.get(key_id, 0) + amount_nano
        return CapUse(kept_nano, ending_nano)

    def hold(self, hold: Hold, amount_nano: int) -> None:
        held = self._held.setdefault(hold.account_id, {})
        assert hold.completion_id not in held
        held[hold.completion_id] = hold.key_id, amount_nano

    def end(self, account_id: str, completion_id: str) -> None:
        """The end of a request was written."""
        if held := self._held.get(account_id):
            held.pop(completion_id, None)
            if not held:
                del self._held[account_id]

    def doubt(self, account_id: str, key_id: str) -> None:
        """The store may have another amount for a key: it is written again with the next batch of its account."""
        self._doubtful.setdefault(account_id, set()).add(key_id)

    def written(self, account_id: str) -> None:
        """The store has the right amounts for an account."""
        self._doubtful.pop(account_id, None)

    def doubtful(self, stored: Iterable[tuple[str, str]]) -> list[str]:
        """The accounts with doubtful keys. `stored` are the accounts and keys for which the store has amounts."""
        for account_id, key_id in stored:
            if all(key_id != held_of for held_of, _ in self._held.get(account_id, {}).values()):
                self.doubt(account_id, key_id)
        return [*self._doubtful]

    def lose(self) -> None:
        self._held.clear()
        self._doubtful.clear()
