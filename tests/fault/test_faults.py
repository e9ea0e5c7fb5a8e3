"""Every fault of HTTP and of content, in both modes: the client sees what is promised, and nothing leaks."""

import pytest

from tests.fault.content_faults import CONTENT
from tests.fault.fault_checks import check_fault
from tests.fault.http_faults import HTTP
from tests.fault.rig import FaultRig

FAULTS = {**HTTP, **CONTENT}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_in_both_modes(rig: FaultRig, name: str) -> None:
    """A streaming and a plain client see the expected reply, nothing leaks, and the next request is served."""
    check_fault(rig, FAULTS[name])
