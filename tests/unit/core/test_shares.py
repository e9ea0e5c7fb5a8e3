"""Places that keys share: all of them for who comes alone, and for each its share while others want theirs."""

import pytest

from cadenza.core.shares import WANTING_KEYS_MAX, WANTS_PER_KEY_MAX, WANTS_S, Shares

GREEDY = "key_greedy"
MODEST = "key_modest"


def take_all(shares: Shares, key: str, now_s: float = 0.0) -> int:
    """How many places the key got before it was refused."""
    count = 0
    while shares.take(key, now_s):
        count += 1
    return count


def refuse(shares: Shares, key: str, now_s: float, times: int = 1) -> None:
    for _ in range(times):
        assert not shares.take(key, now_s)
        shares.want(key, now_s)


def test_who_comes_alone_may_have_every_place() -> None:
    """While nobody else wants one, a key takes all the places that there are, and no more."""
    shares = Shares(5)
    assert take_all(shares, GREEDY) == 5
    assert (shares.taken, shares.held_by(GREEDY), shares.held_by(MODEST)) == (5, 5, 0)


def test_place_that_is_given_back_is_free_for_anyone() -> None:
    """As many come in as go out, whoever they are."""
    shares = Shares(3)
    take_all(shares, GREEDY)
    for _ in range(3):
        shares.give_back(GREEDY)
        assert shares.take(MODEST, 0.0)
        assert not shares.take(MODEST, 0.0)
    assert (shares.held_by(GREEDY), shares.held_by(MODEST)) == (0, 3)


def test_nobody_gives_back_what_it_has_not() -> None:
    """A place is given back under the key that took it, once."""
    shares = Shares(2)
    shares.take(GREEDY, 0.0)
    with pytest.raises(KeyError):
        shares.give_back(MODEST)
    shares.give_back(GREEDY)
    with pytest.raises(KeyError):
        shares.give_back(GREEDY)
    assert shares.taken == 0


def test_greedy_key_leaves_free_places_to_who_was_refused() -> None:
    """A key with more than its share does not get a place that a refused key wants; that key gets it."""
    shares = Shares(4)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0, times=2)
    shares.give_back(GREEDY)
    assert not shares.take(GREEDY, 0.1)
    assert shares.take(MODEST, 0.2)
    shares.give_back(GREEDY)
    assert not shares.take(GREEDY, 0.3)
    assert shares.take(MODEST, 0.4)
    assert (shares.held_by(GREEDY), shares.held_by(MODEST)) == (2, 2)


def test_who_has_less_than_its_share_is_never_held_off() -> None:
    """A key that has nothing gets the free place, though another was refused before it came."""
    shares = Shares(4)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0)
    shares.give_back(GREEDY)
    assert shares.take("key_new", 0.1)


def test_nobody_is_held_off_for_more_than_is_wanted() -> None:
    """Of two free places one is wanted: the greedy key has the other."""
    shares = Shares(6)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0)
    shares.give_back(GREEDY)
    shares.give_back(GREEDY)
    assert take_all(shares, GREEDY, 0.1) == 1
    assert shares.take(MODEST, 0.1)


def test_who_got_what_it_wanted_wants_no_more() -> None:
    """Once the refused key has its place, the greedy one may take what comes free."""
    shares = Shares(4)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0)
    shares.give_back(GREEDY)
    assert shares.take(MODEST, 0.1)
    shares.give_back(MODEST)
    assert shares.take(GREEDY, 0.2)


def test_nobody_is_waited_for_beyond_its_time() -> None:
    """A key that does not come back loses its claim after the time that it was given, and not before."""
    shares = Shares(4)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 10.0)
    shares.give_back(GREEDY)
    assert not shares.take(GREEDY, 10.0 + WANTS_S - 0.001)
    assert shares.take(GREEDY, 10.0 + WANTS_S)


def test_what_was_wanted_long_ago_is_forgotten() -> None:
    """A key that was refused often long ago, and now once, keeps one place free and not as many as then."""
    shares = Shares(100)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0, times=30)
    refuse(shares, MODEST, 10 * WANTS_S)
    for _ in range(20):
        shares.give_back(GREEDY)
    assert take_all(shares, GREEDY, 10 * WANTS_S) == 19


def test_wanting_more_than_a_share_holds_off_nobody() -> None:
    """A key that has its share already cannot keep places free by wanting more."""
    shares = Shares(4)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0)
    shares.give_back(GREEDY)
    shares.take(MODEST, 0.1)
    refuse(shares, GREEDY, 0.2, times=10)
    shares.give_back(GREEDY)
    assert take_all(shares, MODEST, 0.3) == 1


def test_more_keys_than_places_leave_no_place_idle() -> None:
    """Where a share is less than one place, whoever comes first has it."""
    shares = Shares(2)
    take_all(shares, GREEDY)
    for number in range(10):
        refuse(shares, f"key_{number}", 0.0)
    shares.give_back(GREEDY)
    assert shares.take("key_9", 0.1)
    shares.give_back(GREEDY)
    assert shares.take(GREEDY, 0.1)


def test_lower_limit_takes_no_place_away() -> None:
    """With a lower limit who has a place keeps it, and nobody comes in until there is room under it."""
    shares = Shares(4)
    take_all(shares, GREEDY)
    shares.limit = 2
    assert shares.taken == 4
    for _ in range(2):
        shares.give_back(GREEDY)
        assert not shares.take(MODEST, 0.0)
    shares.give_back(GREEDY)
    assert shares.take(MODEST, 0.0)


def test_keys_that_are_waited_for_are_bounded() -> None:
    """However many keys are refused, only so many are remembered, the latest of them."""
    shares = Shares(2 * WANTING_KEYS_MAX)
    take_all(shares, GREEDY)
    for number in range(3 * WANTING_KEYS_MAX):
        refuse(shares, f"key_{number}", 0.0)
    assert len(shares._wants) == WANTING_KEYS_MAX
    assert f"key_{3 * WANTING_KEYS_MAX - 1}" in shares._wants


def test_what_one_key_keeps_free_is_bounded() -> None:
    """However often one key is refused, only so many places are kept free for it."""
    shares = Shares(1000)
    take_all(shares, GREEDY)
    refuse(shares, MODEST, 0.0, times=10 * WANTS_PER_KEY_MAX)
    for _ in range(400):
        shares.give_back(GREEDY)
    take_all(shares, GREEDY, 0.1)
    assert shares.limit - shares.taken == WANTS_PER_KEY_MAX


def test_nothing_is_kept_of_who_has_left() -> None:
    """A key that gave back all of its places leaves nothing in memory."""
    shares = Shares(3)
    for number in range(1000):
        shares.take(f"key_{number}", 0.0)
        shares.give_back(f"key_{number}")
    assert (shares._held, dict(shares._wants), shares.taken) == ({}, {}, 0)
