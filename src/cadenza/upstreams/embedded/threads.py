"""How many threads the model may use: one less than the cores that this process may use, so that the rest can run.

A model with as many threads as cores loses most of its speed as soon as anything else needs a core.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def model_threads(cores: int, quotas: list[float]) -> int:
    """At least 1. `quotas` are limits on CPU time, in cores."""
    return max(math.floor(min([cores, *quotas])) - 1, 1)


def usable_cores() -> int:
    """The cores that the scheduler may give to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quotas(root: Path = Path("/")) -> list[float]:
    """The CPU quotas of this process's control groups, in cores; none on a system without control groups.

    `root` is the root of the file system. Every group above a group limits it too.
    """
    memberships = _read(root / "proc/self/cgroup").splitlines()
    found = [_quota(folder) for line in memberships for folder in _folders(line, root / "sys/fs/cgroup")]
    return [quota for quota in found if quota is not None]


def _folders(membership: str, mounted: Path) -> Iterator[Path]:
    """The folders of a group and of all groups above it, from a line like `0::/a/b` (v2) or `4:cpu,cpuacct:/a` (v1)."""
    _, _, rest = membership.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers and "cpu" not in controllers.split(","):
        return
    group = PurePosixPath(path.lstrip("/"))
    for part in (group, *group.parents):
        yield mounted / ("cpu" if controllers else "") / part


def _quota(folder: Path) -> float | None:
    """From `cpu.max` (v2) or the two files of v1; None where there is no limit, which is written as `max` or -1."""
    numbers = _read(folder / "cpu.max").split()
    numbers = numbers or [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(numbers) != 2 or not all(number.isdecimal() and int(number) for number in numbers):
        return None
    return int(numbers[0]) / int(numbers[1])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
