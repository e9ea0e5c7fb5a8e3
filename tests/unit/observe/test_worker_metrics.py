"""The metrics of several workers, which share a folder."""

import asyncio
import contextlib
import re
import socket
import stat
from pathlib import Path

import pytest

from cadenza.observe import Metrics
from cadenza.observe.worker_metrics import WorkerMetrics, workers_folder

LONG_S = 100.0
SHORT_S = 0.05


async def read(worker: WorkerMetrics, name: str) -> float | None:
    found = re.search(rf"^{name} (\S+)$", (await worker.render()).decode(), re.MULTILINE)
    return float(found[1]) if found else None


async def retries_and_workers(worker: WorkerMetrics) -> tuple[float | None, float | None]:
    return await read(worker, "cadenza_ledger_retries_total"), await read(worker, "cadenza_workers")


def new_worker(folder: Path, retries: int, answer_s: float = LONG_S) -> WorkerMetrics:
    metrics = Metrics()
    metrics.ledger_retries.inc(retries)
    return WorkerMetrics(metrics, folder, answer_s)


async def test_every_worker_shows_all() -> None:
    """Whichever worker is asked, the answer is the sum."""
    with workers_folder() as folder:
        workers = [new_worker(folder, retries) for retries in (1, 10, 100)]
        async with contextlib.AsyncExitStack() as stack:
            for worker in workers:
                await stack.enter_async_context(worker.running())
            assert [await retries_and_workers(worker) for worker in workers] == [(111, 3)] * 3
            assert await asyncio.gather(*map(retries_and_workers, workers * 5)) == [(111, 3)] * 15


async def test_a_worker_that_ended_stays_counted() -> None:
    """Its counters stay in the sum, its gauges do not, and the worker that replaces it goes on from there."""
    with workers_folder() as folder:
        first, second, third = (new_worker(folder, retries) for retries in (1, 10, 100))
        async with first.running():
            async with second.running():
                assert await retries_and_workers(first) == (11, 2)
            assert await retries_and_workers(first) == (11, 1)
            async with third.running():
                assert await retries_and_workers(first) == await retries_and_workers(third) == (111, 2)
                assert len(list(folder.glob("*.lock"))) == 2


async def test_a_worker_that_does_not_answer_is_shown_by_its_last_numbers() -> None:
    """Its counters are those that it told last; it is not among the workers that are shown."""
    with workers_folder() as folder:
        silent, other = new_worker(folder, 10), new_worker(folder, 1, SHORT_S)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(silent.running())
            await stack.enter_async_context(other.running())
            assert await retries_and_workers(silent) == (11, 2)
            path = folder / "0.socket"
            path.unlink()
            with socket.socket(socket.AF_UNIX) as unanswered:
                unanswered.bind(str(path))
                unanswered.listen()
                assert await retries_and_workers(other) == (11, 1)


async def test_a_damaged_file_is_ignored() -> None:
    """Numbers that cannot be read count nothing, and the slot can be used."""
    with workers_folder() as folder:
        (folder / "0.json").write_text("[{")
        (folder / "0.lock").touch()
        worker = new_worker(folder, 1)
        async with worker.running():
            assert await retries_and_workers(worker) == (1, 1)


async def test_the_folder_of_a_killed_parent_is_removed(tmp_path: Path) -> None:
    """A worker that ends after its parent removes the folder, and another one that still runs can be asked."""
    folder = tmp_path / "workers"
    folder.mkdir()
    first, second = new_worker(folder, 1), new_worker(folder, 10)
    async with first.running():
        async with second.running():
            assert await retries_and_workers(first) == (11, 2)
        assert not folder.exists()
        assert await retries_and_workers(first) == (1, 1)


def test_the_folder_is_private_and_removed() -> None:
    """Only this user can enter the folder, and nothing is left of it."""
    with workers_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_a_long_temporary_folder_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket in the folder has a path that the kernel allows."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with workers_folder() as folder, socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "1234.socket"))
