"""Upstreams that are silent, too slow, endless or unreachable are given up in time; slow correct ones are served."""

import pytest

from tests.fault.fault_checks import MODES, check_fault, check_next, check_reply, send_all
from tests.fault.faults import FAILED, HURRIED
from tests.fault.rig import FaultRig
from tests.fault.timing_faults import TIMED
from tests.fault.unreachable import UNREACHABLE

pytestmark = pytest.mark.slow(reason="waits for the time limits of upstreams")


@pytest.mark.parametrize("name", TIMED)
def test_timing_fault_in_both_modes(rig: FaultRig, name: str) -> None:
    """A streaming and a plain client see the expected reply, nothing leaks, and the next request is served."""
    check_fault(rig, TIMED[name])


@pytest.mark.parametrize("name", UNREACHABLE)
def test_unreachable_upstream_is_502(rig: FaultRig, name: str) -> None:
    """An upstream that cannot be reached is a 502 in either mode; nothing leaks and nothing is charged."""
    balance_nano = rig.ledger.balance_nano
    with UNREACHABLE[name]() as base_url, rig.hurried_to(base_url):
        requests = [rig.new_request(HURRIED, stream=stream) for stream in MODES]
        for request, reply in zip(requests, send_all(rig, requests), strict=True):
            check_reply(reply, FAILED, stream=request.stream)
            assert base_url.encode() not in reply.raw
        rig.check_nothing_leaks()
    assert rig.ledger.balance_nano == balance_nano
    check_next(rig)
