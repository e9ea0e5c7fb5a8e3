"""Places that several keys share: none takes more than its share while others wait. Pure: no clock, no waiting.

While there is room and no key waits, any key may take any number of places. A key that was refused is remembered for a
moment, and keys that already have their share leave free places to it.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

WANTS_S = 2.0  # how long places are left to a refused key, which was told to retry within this time
WANTING_KEYS_MAX = 1000
WANTS_PER_KEY_MAX = 64


class Want(msgspec.Struct):
    """How many places a key was refused, and until when they are left to it."""

    count: int
    until_s: float


class SlotLease(msgspec.Struct, frozen=True):
    """How many places may be taken here until `until_s`, of how many in all, and how many keys share them elsewhere."""

    limit: int
    ceiling: int
    keys_elsewhere: int = 0
    until_s: float = math.inf


class Use(msgspec.Struct, frozen=True):
    """How many places are taken, how many more are wanted, and how many keys have or want one."""

    taken: int
    wanted: int
    keys: int


class Shares:
    """`limit` places. Each that is taken must be given back under the same key.

    They may be a part of a larger number, `ceiling`, whose rest is used elsewhere. A key has a share of them all.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ceiling = limit
        self.taken = 0
        self._keys_elsewhere = 0
        self._until_s = math.inf
        self._held: dict[str, int] = {}
        self._wants: OrderedDict[str, Want] = OrderedDict()  # oldest first

    def change_limit(self, limit: int) -> None:
        self.limit = self.ceiling = limit

    def allow(self, allowance: SlotLease) -> None:
        self.limit = allowance.limit
        self.ceiling = allowance.ceiling
        self._keys_elsewhere = allowance.keys_elsewhere
        self._until_s = allowance.until_s

    def held_by(self, key: str) -> int:
        return self._held.get(key, 0)

    def take(self, key: str, now_s: float) -> bool:
        """Take a place; False if none is free for this key."""
        taken, held = self.taken, self._held
        if taken >= self.limit or now_s >= self._until_s:
            return False
        if self._wants:
            if self._must_leave(key, self.limit - taken, now_s):
                return False
            self._use_want(key)
        self.taken = taken + 1
        held[key] = held.get(key, 0) + 1
        return True

    def release(self, key: str) -> None:
        held = self._held
        left = held[key] - 1
        self.taken -= 1
        if left:
            held[key] = left
        else:
            del held[key]

    def want(self, key: str, now_s: float) -> None:
        """Remember that the key was refused and may retry."""
        known = self._wants.get(key)
        count = known.count if known and known.until_s > now_s else 0
        self._wants[key] = Want(min(count + 1, WANTS_PER_KEY_MAX), now_s + WANTS_S)
        self._wants.move_to_end(key)
        if len(self._wants) > WANTING_KEYS_MAX:
            self._wants.popitem(last=False)

    def is_within_share(self, key: str, more: int) -> bool:
        """Whether the key stays within its share with `more` further places."""
        return self.held_by(key) + more <= self._share(len({key, *self._held, *self._wants}))

    def use(self, waiting: Mapping[str, int], now_s: float) -> Use:
        """The use of the places. `waiting` has the number of waiting requests of each key."""
        self._forget_wants(now_s)
        keys = {*self._held, *self._wants, *waiting}
        share = int(self._share(max(1, len(keys))))
        wants = {key: min(want.count, max(0, share - self.held_by(key))) for key, want in self._wants.items()}
        wanted = sum(max(waiting.get(key, 0), wants.get(key, 0)) for key in {*waiting, *wants})
        return Use(self.taken, wanted, len(keys))

    def _use_want(self, key: str) -> None:
        if (want := self._wants.get(key)) is not None:
            want.count -= 1
            if want.count <= 0:
                del self._wants[key]

    def _share(self, keys: int) -> float:
        return self.ceiling / (keys + self._keys_elsewhere)

    def _forget_wants(self, now_s: float) -> None:
        while self._wants and next(iter(self._wants.values())).until_s <= now_s:
            self._wants.popitem(last=False)

    def _must_leave(self, key: str, free: int, now_s: float) -> bool:
        """Whether the key has its share, and keys that have less want all free places."""
        self._forget_wants(now_s)
        share = self._share(len({key, *self._held, *self._wants}))
        if self.held_by(key) + 1 <= share:
            return False
        others = ((other, want.count) for other, want in self._wants.items() if other != key)
        wanted = sum(min(count, max(0, int(share) - self.held_by(other))) for other, count in others)
        return wanted >= free
