"""15. The store in trouble: /readyz and doctor tell the truth, reading changes nothing, a migration copies first."""

import asyncio
import contextlib
import json
import re
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import StoreUnavailable, check_write
from tests.cli.program import Done, run, run_here
from tests.fault.test_stalled_store import RETRIES, no_space
from tests.hostile.small_disk import fill, full_disk, read_only, small_disk
from tests.loopback import LoopbackUpstream
from tests.migrated import PRIVATE, checkpointed_bytes
from tests.next_release import HEAD, NEXT, next_release
from tests.raw_client import RawClient
from tests.service import Deployment, ServiceProcess, wait_until
from tests.service_config import classes_spec
from tests.unit.http.raw_client import until

pytestmark = pytest.mark.slow(reason="fills disks")

EMAIL = "owner@example.org"
PAGE_BYTES = 4096
PROBES = 300
PAGES_PER_S = 30  # those of the service's other work included
UNANSWERED_S = 2.0
TRIES = 8
LOG_BYTES = 256 * 1024
READING = [
    ("account", "list"),
    ("key", "list", "--account", EMAIL),
    ("usage", "--account", EMAIL),
    ("ledger", "check"),
    ("ledger", "export"),
]


@pytest.fixture
def deployment(upstream: LoopbackUpstream) -> Iterator[Deployment]:
    with Deployment(classes_spec(upstream.base_url)) as made:
        yield made


@pytest.fixture(scope="module")
def old_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a store that this program has made, which is old for the next release."""

    async def make(store: SqliteStore) -> None:
        await store.upgrade()
        await store.close()

    path = tmp_path_factory.mktemp("old") / "cadenza.db"
    asyncio.run(make(SqliteStore(path)))
    return checkpointed_bytes(path)


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables with which `cadenza` is the next release."""
    return next_release(tmp_path_factory.mktemp("next"))


@pytest.fixture
def old_store(old_bytes: bytes, tmp_path: Path) -> Path:
    """The path of a copy of it."""
    path = tmp_path / "data" / "cadenza.db"
    path.parent.mkdir()
    path.write_bytes(old_bytes)
    path.chmod(PRIVATE)
    return path


def is_refused(port: int, key: str) -> bool:
    """Whether a chat gets 429. One that was admitted just before waits for its charge, and gets no answer."""
    with contextlib.suppress(TimeoutError):
        return RawClient(port, key, UNANSWERED_S).chat().status == 429
    return False


def says_what_to_do(readiness: str) -> bool:
    return re.search("[Ff]ree space|has space", readiness) is not None


def check_trouble(deployment: Deployment, process: ServiceProcess, trouble: AbstractContextManager[None]) -> None:
    """During the trouble chats get 429 and /readyz 503; after it both get 200 again."""
    wire = RawClient(process.port, deployment.key)
    assert wire.chat().status == 200
    with trouble:
        wait_until(lambda: process.get("/readyz")[0] == 503, "/readyz telling it")
        wait_until(lambda: is_refused(process.port, deployment.key), "chats being refused")
        wait_until(lambda: says_what_to_do(process.get("/readyz")[1]), "/readyz saying what to do")
        assert process.get("/healthz")[0] == 200
    wait_until(lambda: process.get("/readyz")[0] == 200, "/readyz recovering")
    wait_until(lambda: wire.chat().status == 200, "chats being served again")


def test_full_disk_makes_the_service_not_ready(deployment: Deployment) -> None:
    """With a full disk /readyz says so and what to do, and recovers with the disk."""
    folder = deployment.store.parent
    with small_disk(folder):
        process = deployment.start()
        check_trouble(deployment, process, full_disk(folder))
        process.stop()


def test_a_full_disk_is_logged_once_a_minute(deployment: Deployment) -> None:
    """However often the ledger tries again while the disk is full, each event of the log has one line."""
    folder = deployment.store.parent
    with small_disk(folder):
        process = deployment.start(has_piped_log=True)
        api = RawClient(process.port, deployment.key)
        assert api.chat().status == 200
        with full_disk(folder), api.connect() as connection:
            connection.sendall(api.chat_bytes(b'{"messages":[{"role":"user","content":"hi"}]}'))
            wait_until(lambda: process.metric(RETRIES) >= TRIES, "the ledger trying again")
        events = [json.loads(line)["event"] for line in process.output.splitlines() if line.startswith("{")]
        counts = {event: events.count(event) for event in events if event not in ("request", "internal error")}
        assert counts.pop("the store did not take a batch of the ledger") == 1
        assert set(counts.values()) == {1}, counts
        process.stop()


def test_a_checkpoint_gives_back_space(tmp_path: Path) -> None:
    """On a full disk the write-ahead log is copied and truncated, so that writes go on without an operator."""
    path = tmp_path / "data" / "cadenza.db"
    path.parent.mkdir()

    async def write(store: SqliteStore, times: int) -> None:
        for _ in range(times):
            await check_write(store)

    async def check() -> None:
        store = SqliteStore(path)
        await store.upgrade()
        await write(store, 1)
        log = path.with_name("cadenza.db-wal")
        while log.stat().st_size < LOG_BYTES:
            await write(store, 10)
        fill(path.parent)
        with pytest.raises(StoreUnavailable, match="full"):
            await write(store, 100)
        await until(lambda: log.stat().st_size < LOG_BYTES)
        await write(store, 10)
        await store.close()

    with small_disk(path.parent):
        asyncio.run(check())


def test_files_that_cannot_grow_make_the_service_not_ready(deployment: Deployment) -> None:
    """The same with a limit on files in place of a full disk."""
    process = deployment.start(has_piped_log=True)
    check_trouble(deployment, process, no_space(process))


def test_probes_cost_one_write_a_second(deployment: Deployment) -> None:
    """However many probes come, the store is written about once a second."""
    process = deployment.start()
    before = deployment.store.with_name("cadenza.db-wal").stat().st_size
    wire, began_s = RawClient(process.port, None), time.monotonic()
    statuses = {wire.get("/readyz").status for _ in range(PROBES)}
    grown = deployment.store.with_name("cadenza.db-wal").stat().st_size - before
    seconds = 1 + time.monotonic() - began_s
    assert 200 in statuses <= {200, 503}  # 503 where a write took too long
    assert grown < min(PAGES_PER_S * seconds, PROBES) * PAGE_BYTES


def test_doctor_finds_a_full_disk(deployment: Deployment) -> None:
    """On a full disk doctor finds a fault, beside a running service and without one."""
    folder = deployment.store.parent
    with small_disk(folder):
        process = deployment.start()
        with full_disk(folder):
            assert "ree space" in store_fault(doctor(deployment))["todo"]
            process.kill()
            assert store_fault(doctor(deployment))["todo"]


def test_doctor_finds_a_full_disk_before_the_first_start(tmp_path: Path) -> None:
    """Where the store does not exist yet, its disk must have space."""
    (tmp_path / "data").mkdir()
    with small_disk(tmp_path / "data"), full_disk(tmp_path / "data"):
        assert "Free space" in store_fault(run_here(tmp_path, "doctor", "--json"))["todo"]


@pytest.mark.parametrize("at", [0, 20, 3 * PAGE_BYTES], ids=["magic", "header", "pages"])
def test_doctor_finds_a_damaged_store(deployment: Deployment, at: int) -> None:
    """Wherever the file was overwritten, doctor finds a fault that says what to do."""
    content = bytearray(deployment.store.read_bytes())
    content[at : at + 2 * PAGE_BYTES] = b"\xa5" * (2 * PAGE_BYTES)
    deployment.store.write_bytes(content)
    fault = store_fault(doctor(deployment))
    assert "backup" in fault["todo"] or "move it away" in fault["todo"]


def test_doctor_finds_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    """A `data` that is a file is a fault, and stays as it is."""
    (tmp_path / "data").write_text("in the way")
    fault = store_fault(run_here(tmp_path, "doctor", "--json"))
    assert "is not a folder" in fault["found"]
    assert "another path" in fault["todo"]
    assert (tmp_path / "data").read_text() == "in the way"


def test_doctor_finds_a_read_only_folder(tmp_path: Path) -> None:
    """A folder that cannot be written is a fault, without a store in it and with one."""
    folder = tmp_path / "data"
    folder.mkdir()
    with read_only(folder):
        assert "write" in store_fault(run_here(tmp_path, "doctor", "--json"))["todo"]
    assert run_here(tmp_path, "migrate").returncode == 0
    with read_only(folder):
        assert "written" in store_fault(run_here(tmp_path, "doctor", "--json"))["todo"]


@pytest.mark.parametrize("command", [*READING, ("doctor",)], ids=" ".join)
def test_reading_creates_no_store(tmp_path: Path, command: tuple[str, ...]) -> None:
    """A command that only reads leaves an empty folder empty, and says what to do."""
    done = run_here(tmp_path, *command)
    assert list(tmp_path.iterdir()) == []
    if command != ("doctor",):
        assert done.returncode == 1
        assert "There is no store" in done.stderr
        assert "cadenza migrate" in done.stderr


@pytest.mark.parametrize("command", [READING[0], ("ledger", "check"), ("doctor",)], ids=" ".join)
def test_reading_migrates_no_store(old_store: Path, command: tuple[str, ...], following: dict[str, str]) -> None:
    """A command that only reads leaves an older schema as it is, and says what to do."""
    done = run(old_store.parents[1], *command, **following)
    assert revision_of(old_store) == HEAD
    assert copies_of(old_store) == []
    if command != ("doctor",):
        assert done.returncode == 1
        assert "cadenza migrate" in done.stderr


@pytest.mark.parametrize("command", [("migrate",), ("account", "create", EMAIL, "--password-stdin")], ids=" ".join)
def test_a_migration_copies_the_store_first(
    old_store: Path, command: tuple[str, ...], following: dict[str, str]
) -> None:
    """The copy beside the file has the old revision, in its name too, is private, and is named on standard error."""
    done = run(old_store.parents[1], *command, given="correct horse battery staple\n", **following)
    assert done.returncode == 0, done.stderr
    [copy] = copies_of(old_store)
    assert f"copied to {copy}." in done.stderr
    assert copy.name.startswith(f"cadenza.db.backup-{HEAD}-")
    assert (revision_of(copy), revision_of(old_store)) == (HEAD, NEXT)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert not list(old_store.parent.glob("*.partial"))


def test_a_migration_without_room_for_the_copy_does_not_begin(
    tmp_path: Path, old_store: Path, following: dict[str, str]
) -> None:
    """On a full disk the store stays at its revision, and no half copy is left."""
    with small_disk(old_store.parent):
        with full_disk(old_store.parent):
            done = run(tmp_path, "migrate", **following)
            assert done.returncode == 1
            assert "space" in done.stderr
            assert copies_of(old_store) == []
        assert revision_of(old_store) == HEAD


def doctor(deployment: Deployment) -> Done:
    return run_here(deployment.folder, "doctor", "--json", "--config", str(deployment.config))


def store_fault(done: Done) -> dict[str, Any]:
    assert done.returncode == 1, done.stdout + done.stderr
    [found] = [check for check in json.loads(done.stdout) if check["check"] == "store"]
    assert found["state"] == "fault"
    assert found["todo"]
    return dict(found)


def revision_of(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        [(revision,)] = connection.execute("SELECT revision FROM schema_version").fetchall()
        return str(revision)


def copies_of(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.backup*"))


def test_a_backup_leaves_the_disk_to_the_service(tmp_path: Path) -> None:
    """A copy that would fill the disk of the store is refused before anything is written."""
    assert run_here(tmp_path, "migrate").returncode == 0
    with small_disk(tmp_path / "data"):
        before = sorted((tmp_path / "data").iterdir())
        done = run_here(tmp_path, "backup")
        assert (done.returncode, sorted((tmp_path / "data").iterdir())) == (1, before)
        assert "too little space for a copy" in done.stderr
