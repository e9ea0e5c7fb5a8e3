"""Every fault of the wire and of what is said, in both modes: the client sees what is promised, nothing is left behind,
and the next request is served.
"""

import pytest

from tests.fault.faults_said import SAID
from tests.fault.faults_wire import WIRE
from tests.fault.leaks import Bed
from tests.fault.verdicts import check_fault

FAULTS = {**WIRE, **SAID}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_in_both_modes(bed: Bed, name: str) -> None:
    """Whoever asked, for a stream and for a plain reply, sees what is promised; nothing is left, and the next works."""
    check_fault(bed, FAULTS[name])


def test_script_is_long_enough() -> None:
    """There are well over forty faults."""
    assert len(FAULTS) > 100
