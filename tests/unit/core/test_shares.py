"""Places that keys share: a single key may have all of them, and each has its share while others want theirs."""

import pytest

from cadenza.core.shares import WANTING_KEYS_MAX, WANTS_PER_KEY_MAX, WANTS_S, Shares, SlotLease, Use

GREEDY = "key_greedy"
MODEST = "key_modest"


def take_all(shares: Shares, key: str, now_s: float = 0.0) -> int:
    """Take places until the key is refused; how many it got."""
    count = 0
    while shares.take(key, now_s):
        count += 1
    return count


def refuse(shares: Shares, key: str, now_s: float, times: int = 1) -> None:
    for _ in range(times):
        assert not shares.take(key, now_s)
        shares.want(key, now_s)


def test_a_key_cannot_give_back_a_place_that_it_does_not_have() -> None:
    """A place is given back once, under the key that took it."""
    shares = Shares(2)
    shares.take(GREEDY, 0.0)
    with pytest.raises(KeyError):
        shares.release(MODEST)
    shares.release(GREEDY)
    with pytest.raises(KeyError):
        shares.release(GREEDY)
    assert shares.taken == 0


def test_a_key_above_its_share_leaves_free_places_to_a_refused_key() -> None:
    """The free place that a refused key wants is refused to the other and granted to it."""
    shares = Shares(4)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0, times=2)
    shares.release(GREEDY)
    assert not shares.take(GREEDY, 0.1)
    assert shares.take(MODEST, 0.2)
    shares.release(GREEDY)
    assert not shares.take(GREEDY, 0.3)
    assert shares.take(MODEST, 0.4)
    assert (shares.held_by(GREEDY), shares.held_by(MODEST)) == (2, 2)


def test_a_want_expires() -> None:
    """A refused key that does not retry loses its claim after WANTS_S, and not before."""
    shares = Shares(4)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 10.0)
    shares.release(GREEDY)
    assert not shares.take(GREEDY, 10.0 + WANTS_S - 0.001)
    assert shares.take(GREEDY, 10.0 + WANTS_S)


def test_expired_wants_are_not_added_to_new_ones() -> None:
    """A key that was refused 30 times long ago and once now holds back one place."""
    shares = Shares(100)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0, times=30)
    refuse(shares, MODEST, 10 * WANTS_S)
    for _ in range(20):
        shares.release(GREEDY)
    assert take_all(shares, GREEDY, 10 * WANTS_S) == 19


def test_a_key_cannot_hold_back_more_than_its_share() -> None:
    """A key that already has its share does not keep places free by wanting more."""
    shares = Shares(4)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0)
    shares.release(GREEDY)
    shares.take(MODEST, 0.1)
    refuse(shares, GREEDY, 0.2, times=10)
    shares.release(GREEDY)
    assert take_all(shares, MODEST, 0.3) == 1


@pytest.mark.slow(reason="refuses as many keys as are remembered")
def test_only_the_latest_refused_keys_are_remembered() -> None:
    """Of more refused keys than WANTING_KEYS_MAX the latest hold back a place each, and the earlier ones none."""
    shares, places = Shares(5 * WANTING_KEYS_MAX), 2 * WANTING_KEYS_MAX
    take_all(shares, GREEDY)
    for number in range(3 * WANTING_KEYS_MAX):
        is_late = number >= 2 * WANTING_KEYS_MAX
        refuse(shares, f"key_{number}", WANTS_S / 2 if is_late else 0.0)
    for _ in range(places):
        shares.release(GREEDY)
    assert take_all(shares, GREEDY, WANTS_S) == places - WANTING_KEYS_MAX


def test_one_key_holds_back_a_bounded_number_of_places() -> None:
    """However often one key is refused, at most WANTS_PER_KEY_MAX places are held back for it."""
    shares = Shares(1000)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0, times=10 * WANTS_PER_KEY_MAX)
    for _ in range(400):
        shares.release(GREEDY)
    take_all(shares, GREEDY, 0.1)
    assert shares.limit - shares.taken == WANTS_PER_KEY_MAX


def test_no_place_is_taken_after_the_end_of_an_allowance() -> None:
    """Until a new one comes."""
    shares = Shares(0)
    shares.allow(SlotLease(limit=4, ceiling=4, until_s=10.0))
    assert shares.take("key_a", 9.9)
    assert not shares.take("key_a", 10.0)
    shares.allow(SlotLease(limit=4, ceiling=4, until_s=20.0))
    assert shares.take("key_a", 10.0)


def test_the_share_of_a_key_counts_keys_elsewhere() -> None:
    """It is a part of all places, also of those that are not here."""
    shares = Shares(0)
    shares.allow(SlotLease(limit=1, ceiling=12, keys_elsewhere=2))
    assert [shares.is_within_share("key_a", more) for more in (4, 5)] == [True, False]
    assert shares.take("key_b", 0.0)
    assert [shares.is_within_share("key_a", more) for more in (3, 4)] == [True, False]


def test_the_use_counts_places_that_are_waited_for_or_were_refused() -> None:
    """A key that waits and was refused counts once, and a refused key wants no more than its share."""
    shares = Shares(2)
    assert take_all(shares, "key_a") == 2
    refuse(shares, "key_b", 0.0, times=9)
    assert shares.use({}, 0.0) == Use(taken=2, wanted=1, keys=2)
    assert shares.use({"key_b": 1, "key_c": 3}, 0.0) == Use(taken=2, wanted=4, keys=3)
    assert shares.use({}, WANTS_S) == Use(taken=2, wanted=0, keys=1)
