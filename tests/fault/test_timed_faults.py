"""An upstream that is silent, too slow or endless, or cannot be reached: it is given up in time, with nothing left
behind, and the next request is served. What is slow but sound is served whole.
"""

import pytest

from tests.fault.faults import FAILED, HURRIED
from tests.fault.faults_timed import TIMED
from tests.fault.leaks import Bed
from tests.fault.places import PLACES
from tests.fault.verdicts import MODES, check_fault, check_next, check_told, send_all


@pytest.mark.parametrize("name", TIMED)
def test_timed_fault_in_both_modes(bed: Bed, name: str) -> None:
    """Whoever asked, for a stream and for a plain reply, hears of this fault in time; nothing is left behind."""
    check_fault(bed, TIMED[name])


@pytest.mark.parametrize("name", PLACES)
def test_place_where_no_upstream_answers(bed: Bed, name: str) -> None:
    """An upstream that cannot be reached is a 502 in either mode, within its time; nothing is left and nothing paid."""
    balance_nano = bed.books.balance_nano
    with PLACES[name]() as base_url, bed.hurried_to(base_url):
        asks = [bed.new_ask(HURRIED, stream=stream) for stream in MODES]
        for ask, seen in zip(asks, send_all(bed, asks), strict=True):
            check_told(seen, FAILED, stream=ask.stream)
            assert base_url.encode() not in seen.raw
        bed.check_nothing_leaks()
    assert bed.books.balance_nano == balance_nano
    check_next(bed)
