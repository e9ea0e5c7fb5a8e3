"""The metrics of all workers, from whichever worker is asked. The parent makes a private folder for them.

Each worker has a slot in the folder: a lock that ends with it, a socket on which it tells its numbers, and a file with
the numbers that it told last. A worker that does not answer in time is shown with the counters of its file and without
gauges. One that replaces a dead worker takes over its slot and goes on counting from the file, so that no sum falls:
Prometheus would take a fall for a restart. What a killed worker counted after it was last asked is lost.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from cadenza.observe.metrics import Metrics

ANSWER_S = 0.5
SOCKET_PATH_MAX = 100  # the kernel allows 107 bytes
HIGHEST = {  # gauges of a state, 1 if any process is in it, or of a time: the latest
    "cadenza_build_info",
    "cadenza_ledger_longest_wait_seconds",
    "cadenza_route_resting",
    "cadenza_route_failing",
    "cadenza_route_last_fault_timestamp_seconds",
}
LOWEST = {"cadenza_shared_state_up", "process_start_time_seconds"}  # 0 if any process has it; the first start
COUNTED = {"counter", "histogram"}  # what a process has counted stays counted after its end

Labels = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, frozen=True):
    """One metric with its samples: name and labels -> value."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, Labels, float]]


ReadMetrics = Callable[[], Awaitable[list[Family]]]
FAMILIES = msgspec.json.Decoder(list[Family])


@contextlib.contextmanager
def workers_folder() -> Iterator[Path]:
    """A folder for the metrics of the workers, private to this user, for the block."""
    usual = tempfile.gettempdir()
    fits = len(f"{usual}/cadenza-12345678/1234.socket") <= SOCKET_PATH_MAX
    with tempfile.TemporaryDirectory(prefix="cadenza-", dir=usual if fits else "/tmp") as folder:  # noqa: S108 made new
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)  # systemd deletes old files of /tmp, but not in a locked folder
            yield Path(folder)
        finally:
            os.close(lock)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove the folder of a parent that was killed: its lock on the folder is gone."""
    with contextlib.suppress(OSError):
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


class WorkerMetrics:
    """This worker's own numbers, and those of the others."""

    def __init__(self, metrics: Metrics, folder: Path, answer_s: float = ANSWER_S) -> None:
        self._metrics = metrics
        self._folder = folder
        self._answer_s = answer_s
        self._slot = ""
        self._before: list[Family] = []  # counted by the workers that had this slot

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take a slot, and tell this worker's numbers to the others for the block."""
        with self._taken_slot():
            path = self._path(self._slot, "socket")
            path.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(self._tell, path)
            try:
                yield
            finally:
                server.close()
                self._save(self._read_own())
                path.unlink(missing_ok=True)
                _remove_if_abandoned(self._folder)

    async def render(self) -> bytes:
        """The metrics of all workers, as Prometheus reads them."""
        return render(await self.read())

    async def read(self) -> list[Family]:
        """The metrics of all workers."""
        others = sorted({path.stem for path in self._folder.glob("*.lock")} - {self._slot})
        other_workers = await asyncio.gather(*(self._ask(slot) for slot in others))
        own = self._read_own()
        self._save(own)
        return merge([own, *other_workers])

    async def _ask(self, slot: str) -> list[Family]:
        try:
            async with asyncio.timeout(self._answer_s):
                reader, writer = await asyncio.open_unix_connection(self._path(slot, "socket"))
                with contextlib.closing(writer):
                    return FAMILIES.decode(await reader.read())
        except (OSError, TimeoutError, msgspec.DecodeError):
            return only_counted(self._load(slot))

    async def _tell(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._save(self._read_own()))
        writer.close()

    def _read_own(self) -> list[Family]:
        return merge([self._before, read_families(self._metrics.registry)])

    def _save(self, own: list[Family]) -> bytes:
        """Keep the numbers for the worker that replaces this one. If the disk is full, the file before stays."""
        encoded = msgspec.json.encode(own)
        partial = self._path(self._slot, "partial")
        with contextlib.suppress(OSError):
            partial.write_bytes(encoded)
            partial.rename(self._path(self._slot, "json"))
        return encoded

    def _load(self, slot: str) -> list[Family]:
        try:
            return FAMILIES.decode(self._path(slot, "json").read_bytes())
        except (OSError, msgspec.DecodeError):
            return []

    @contextlib.contextmanager
    def _taken_slot(self) -> Iterator[None]:
        """Take the first slot whose worker is dead, or a new one."""
        for number in count():
            lock = os.open(self._path(str(number), "lock"), os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            break
        try:
            self._slot = str(number)
            self._before = only_counted(self._load(self._slot))
            yield
        finally:
            os.close(lock)

    def _path(self, slot: str, kind: str) -> Path:
        return self._folder / f"{slot}.{kind}"


def read_families(registry: CollectorRegistry) -> list[Family]:
    return [
        Family(
            family.name,
            family.type,
            family.documentation,
            [(sample.name, tuple(sample.labels.items()), sample.value) for sample in family.samples],
        )
        for family in registry.collect()
    ]


def only_counted(families: Sequence[Family]) -> list[Family]:
    """Without the gauges, which say nothing about a process that has ended."""
    return [family for family in families if family.kind in COUNTED]


def merge(processes: Iterable[Sequence[Family]]) -> list[Family]:
    """The metrics of all processes, in the order in which they are first seen."""
    merged: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, Labels], float]] = {}
    for families in processes:
        for family in families:
            merged.setdefault(family.name, family)
            of_family = values.setdefault(family.name, {})
            for name, labels, value in family.samples:
                before = of_family.get((name, labels))
                of_family[name, labels] = value if before is None else _combined(name, before, value)
    return [
        msgspec.structs.replace(family, samples=[(*key, value) for key, value in values[name].items()])
        for name, family in merged.items()
    ]


def _combined(name: str, one: float, other: float) -> float:
    if name in HIGHEST:
        return max(one, other)
    return min(one, other) if name in LOWEST or name.endswith("_created") else one + other


def render(families: Sequence[Family]) -> bytes:
    return generate_latest(FamilyCollector(families))


class FamilyCollector(Collector):
    """Families as the library wants them."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.help, family.kind)
            for name, labels, value in family.samples:
                metric.add_sample(name, dict(labels), value)
            yield metric
