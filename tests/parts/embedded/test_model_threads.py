"""How many threads the embedded model uses, by cores and by the CPU quotas of control groups."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cadenza.parts.embedded.upstream import model_threads
from cadenza.process import cpu_quotas


@pytest.mark.parametrize(
    ("cores", "quotas", "threads"),
    [
        (1, [], 1),
        (2, [], 1),
        (8, [], 7),
        (8, [2.0], 1),
        (8, [3.9], 2),
        (8, [16.0, 4.0], 3),
        (8, [0.5], 1),
        (4, [16.0], 3),
    ],
)
def test_one_thread_less_than_cores(cores: int, quotas: list[float], threads: int) -> None:
    """The smallest of cores and quotas counts, one core is left free, and there is always one thread."""
    assert model_threads(cores, quotas) == threads


V1 = "7:memory:/pod\n4:cpu,cpuacct:/pod\n"


@pytest.mark.parametrize(
    ("files", "quotas"),
    [
        ({}, []),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, [1.5]),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, []),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "200000 100000\n"}, [2.0]),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
            },
            [4.0, 3.0],
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
            },
            [2.5],
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
            },
            [2.0],
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
            },
            [],
        ),
        ({"proc/self/cgroup": "nonsense\n0::\n", "sys/fs/cgroup/cpu.max": "1 0\n"}, []),
    ],
    ids=["none", "v2", "v2 max", "v2 nested", "v2 parent", "v1", "v1 container", "v1 max", "nonsense"],
)
def test_cpu_quotas_of_control_groups(tmp_path: Path, files: Mapping[str, str], quotas: list[float]) -> None:
    """Quotas are read from cgroup v2 and v1, of the process's own group and of the groups above it."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cpu_quotas(tmp_path) == quotas
