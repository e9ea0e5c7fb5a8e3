"""How many threads the embedded model uses, by cores and CPU quotas."""

import pytest

from cadenza.parts.embedded.upstream import model_threads


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
