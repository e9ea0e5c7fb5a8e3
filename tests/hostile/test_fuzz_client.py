"""A short run of the fuzzer that compares our client with h11. A long one: `python -m tests.hostile.fuzz_client`."""

import uvloop

from tests.hostile.fuzz_client import LOOSER, STRICTER, run

CASES = 2000
SEED = 20


def test_our_client_and_h11_accept_the_same_responses() -> None:
    """Whatever bytes come, both read the same response from them, apart from the differences that are listed."""
    report = uvloop.run(run(CASES, SEED))
    assert report.others == []
    assert report.accepted > CASES / 2
    assert report.refused > CASES / 10
    assert report.deliberate.keys() <= STRICTER.keys() | LOOSER.keys()
