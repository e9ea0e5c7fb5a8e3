"""The same child where the system refuses its filter, as some containers do."""

import errno

from cadenza.children.seccomp import (
    ALLOW,
    CALL,
    IF_EQUAL,
    LOAD,
    REFUSE,
    RETURN,
    SECCOMP,
    Machine,
    install,
    this_machine,
)
from tests.unit.children.probe import main


def refuse_filters(machine: Machine) -> bool:
    """Forbid this process and those that it starts to install filters."""
    steps = [
        (LOAD, 0, 0, CALL),
        (IF_EQUAL, 0, 1, SECCOMP[machine.column]),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    return install(steps, machine)


if __name__ == "__main__":
    this = this_machine()
    assert this
    assert refuse_filters(this)
    main()
