"""A short run of the fuzzer that compares our server with h11. A long one: `python -m tests.hostile.fuzz_server`."""

import uvloop

from tests.hostile.fuzz_server import LOOSER, STRICTER, run

CASES = 2000
SEED = 20


def test_our_server_and_h11_accept_the_same_requests() -> None:
    """Whatever bytes come, both read the same requests from them, apart from the differences that are listed."""
    report = uvloop.run(run(CASES, SEED))
    assert report.others == []
    assert report.accepted > CASES / 2
    assert report.refused > CASES / 10
    assert report.deliberate.keys() <= STRICTER.keys() | LOOSER.keys()
