"""Runs the steps of a filter of system calls, as the kernel does."""

from collections.abc import Sequence
from typing import NamedTuple

from cadenza.children.seccomp import ARCHITECTURE, ARGUMENTS, CALL, IF_ANY_BIT, IF_EQUAL, LOAD, RETURN, Step


class Call(NamedTuple):
    """A system call: the processor, its number and its arguments."""

    architecture: int
    number: int
    arguments: tuple[int, ...] = (0, 0, 0, 0, 0, 0)


def run_filter(steps: Sequence[Step], call: Call) -> int:
    """What the filter says of a call."""
    data = {CALL: call.number, ARCHITECTURE: call.architecture}
    data |= {ARGUMENTS + 8 * place: value for place, value in enumerate(call.arguments)}
    loaded, at = 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == RETURN:
            return value
        if code == LOAD:
            loaded = data[value]
        else:
            assert code in {IF_EQUAL, IF_ANY_BIT}
            is_true = loaded == value if code == IF_EQUAL else bool(loaded & value)
            at += if_true if is_true else if_false
