"""Shares in any order of operations, compared with a plain count of the places that each key has and wants."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cadenza.core.shares import WANTS_S, Shares

KEYS = st.sampled_from(["key_a", "key_b", "key_c", "key_d"])


class SharesMachine(RuleBasedStateMachine):
    """Takes places, refuses keys and gives places back in any order."""

    @initialize(limit=st.integers(1, 9))
    def begin(self, limit: int) -> None:
        self.shares = Shares(limit)
        self.now_s = 0.0
        self.held: Counter[str] = Counter()
        self.wants: dict[str, tuple[int, float]] = {}

    @rule(key=KEYS, wants_if_refused=st.booleans())
    def take_all(self, key: str, wants_if_refused: bool) -> None:
        """Make places scarce."""
        while self.take(key, wants_if_refused):
            pass

    @rule(key=KEYS, wants_if_refused=st.booleans())
    def take_one(self, key: str, wants_if_refused: bool) -> None:
        self.take(key, wants_if_refused)

    def take(self, key: str, wants_if_refused: bool) -> bool:
        wants = {name: count for name, (count, until_s) in self.wants.items() if until_s > self.now_s}
        free = self.shares.limit - self.held.total()
        share = self.shares.limit / len({key, *wants, *(+self.held)})
        is_taken = self.shares.take(key, self.now_s)
        if free == 0:
            assert not is_taken
        elif self.held[key] + 1 <= share or not (wants.keys() - {key}):
            assert is_taken, f"{free} free of {self.shares.limit}; {self.held} held, {wants} wanted"
        elif not is_taken:
            assert sum(count for name, count in wants.items() if name != key) >= free
        if is_taken:
            self.held[key] += 1
            self._want(key, -1)
        elif wants_if_refused:
            self.shares.want(key, self.now_s)
            self._want(key, 1)
        return is_taken

    @precondition(lambda self: self.held.total())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(+self.held)))
        self.shares.release(key)
        self.held[key] -= 1

    @rule(time_s=st.sampled_from([0.1, WANTS_S / 2, WANTS_S]))
    def wait(self, time_s: float) -> None:
        self.now_s += time_s

    @invariant()
    def counts_agree(self) -> None:
        assert 0 <= self.shares.taken == self.held.total() <= self.shares.limit
        assert {key: self.shares.held_by(key) for key in self.held} == self.held

    def _want(self, key: str, more: int) -> None:
        count, until_s = self.wants.pop(key, (0, 0.0))
        if more > 0:
            until_s = self.now_s + WANTS_S
        if count + more > 0:
            self.wants[key] = (count + more, until_s)


def test_shares_are_fair_in_any_order_of_operations() -> None:
    """The counts agree, and a free place is refused only to a key above its share, for a key that wants it."""
    run_state_machine_as_test(SharesMachine, settings=settings(max_examples=40, stateful_step_count=40))
