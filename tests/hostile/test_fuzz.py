"""Short runs of the fuzzers that compare us with h11. A long one: `python -m tests.hostile.fuzz_server`."""

from types import ModuleType

import pytest
import uvloop

from tests.hostile import fuzz_client, fuzz_server

CASES = 800
SEED = 20


@pytest.mark.parametrize(
    "fuzzer", [fuzz_client, fuzz_server], ids=["responses to our client", "requests to our server"]
)
def test_we_and_h11_accept_the_same(fuzzer: ModuleType) -> None:
    """Whatever bytes come, both read the same from them, apart from the differences that are listed."""
    report = uvloop.run(fuzzer.run(CASES, SEED))
    assert report.others == []
    assert report.accepted > CASES / 2
    assert report.refused > CASES / 10
    assert report.deliberate.keys() <= fuzzer.STRICTER.keys() | fuzzer.LOOSER.keys()
