"""cadenza backup: a checked copy beside a running service, private, and never in place of another file."""

import re
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from tests.cli.conftest import EMAIL
from tests.cli.program import Done, run_here
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import Service, wait_until
from tests.service_config import classes_spec

COPY = re.compile(r"cadenza-\d{8}T\d{6}\.\d{3}Z\.db")
CLIENTS = 4
ROUNDS = 2


def assert_refused(done: Done, sentence: str) -> None:
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cadenza: ")
    assert sentence in done.stderr


def count_entries(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT count(*) FROM entries").fetchone()[0])


def use_as_store(folder: Path, database: Path) -> None:
    (folder / "cadenza.toml").write_text(f'[store]\nurl = "sqlite:///{database}"\n')


def test_a_copy_is_beside_the_store_and_can_be_served_from(furnished: Path) -> None:
    """Without a name the copy gets the time; it is one private file, and a store with the same account."""
    done = run_here(furnished, "backup")
    assert done.returncode == 0, done.stderr
    copy = Path(done.stdout.strip())
    assert copy.parent == furnished / "data"
    assert COPY.fullmatch(copy.name)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert re.search(r"checked: \d+\.\d MB, and its ledger is sound", done.stderr)
    assert [path.name for path in copy.parent.glob(f"{copy.name}*")] == [copy.name]
    use_as_store(furnished, copy)
    assert EMAIL in run_here(furnished, "account", "list").stdout


def test_nothing_is_overwritten(furnished: Path) -> None:
    """A file of that name, or of an unfinished copy, stays as it is, and nothing is left behind."""
    for name in ("taken.db", "begun.db.partial"):
        (furnished / name).write_text("mine")
    before = set(furnished.iterdir())
    assert_refused(run_here(furnished, "backup", "taken.db"), "taken.db exists already")
    assert_refused(run_here(furnished, "backup", "begun.db"), "begun.db.partial exists already")
    assert set(furnished.iterdir()) == before
    assert (furnished / "taken.db").read_text() == (furnished / "begun.db.partial").read_text() == "mine"


def test_a_damaged_store_leaves_no_copy(furnished: Path) -> None:
    """A copy that cannot be read in full is deleted, and the command fails."""
    database = furnished / "data" / "cadenza.db"
    with closing(sqlite3.connect(database)) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page_size = store.execute("PRAGMA page_size").fetchone()[0]
        [(page,)] = store.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries'").fetchall()
    with database.open("r+b") as file:
        file.seek((page - 1) * page_size)
        file.write(b"\xff" * page_size)
    assert_refused(run_here(furnished, "backup", "copy.db"), "copy.db")
    assert not list(furnished.glob("copy.db*"))


def test_a_copy_beside_a_loaded_service_is_complete(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """While clients are served, copies end, are sound, and have at least what was charged before they began."""
    with Service(classes_spec(upstream.base_url)) as service:
        wire, is_over = RawClient(service.port, service.key), threading.Event()

        def keep_asking() -> None:
            while not is_over.is_set():
                assert wire.chat().status == 200

        with ThreadPoolExecutor(CLIENTS) as crowd:
            clients = [crowd.submit(keep_asking) for _ in range(CLIENTS)]
            try:
                wait_until(lambda: count_entries(service.store) > 1, "the first charge")
                for number in range(ROUNDS):
                    before, copy = count_entries(service.store), tmp_path / f"{number}.db"
                    done = service.cli("backup", str(copy))
                    assert done.returncode == 0, done.stderr
                    assert before <= count_entries(copy) <= count_entries(service.store)
            finally:
                is_over.set()
            for client in clients:
                client.result()
    use_as_store(tmp_path, copy)
    assert run_here(tmp_path, "ledger", "check").returncode == 0
