"""Bounded caches: what they keep, what they drop first, and when entries expire."""

from cadenza.core.bounded_cache import BoundedCache, ExpiringCache


class HandClock:
    """A clock that the test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def expiring(clock: HandClock, entries_max: int = 3, bytes_max: int = 100) -> ExpiringCache[str, int]:
    return ExpiringCache(clock, entries_max, bytes_max, age_s_max=10.0)


def test_a_full_cache_drops_the_least_recently_used_entry() -> None:
    """Putting an entry again, or moving it to the end, counts as a use."""
    cache = BoundedCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    cache.put("c", 4)
    assert dict(cache) == {"a": 3, "c": 4}
    cache.move_to_end("a")
    cache.put("d", 5)
    assert dict(cache) == {"a": 3, "d": 5}


def test_an_expiring_cache_is_bounded_in_entries() -> None:
    """Reading an entry counts as a use."""
    cache = expiring(HandClock(), entries_max=2)
    cache.put("a", 1, 1)
    cache.put("b", 2, 1)
    assert cache.get("a") == 1
    cache.put("c", 3, 1)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_an_expiring_cache_is_bounded_in_bytes() -> None:
    """A replaced entry gives its bytes back; one that is larger than the cache is not kept, nor what it replaces."""
    cache = expiring(HandClock())
    cache.put("a", 1, 60)
    cache.put("a", 2, 70)
    cache.put("b", 3, 40)
    assert (len(cache), cache.size_bytes) == (1, 40)
    cache.put("b", 4, 101)
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_an_entry_expires() -> None:
    """It is not found any more, and `drop_expired` frees its memory and says when the next one expires."""
    clock = HandClock()
    cache = expiring(clock)
    cache.put("a", 1, 1)
    clock.now_s = 4.0
    cache.put("b", 2, 1)
    assert cache.drop_expired() == 10.0
    clock.now_s = 10.0
    assert cache.get("a") is None
    assert len(cache) == 2
    assert cache.drop_expired() == 14.0
    assert len(cache) == 1
    cache.clear()
    assert cache.drop_expired() is None
