"""cadenza index: what a run reads, adds, removes and says; and that it can be stopped at any time."""

import json
import os
import pty
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.program import COMMAND_S, PROGRAM, Done, run_here, wait_until
from tests.environment import environment
from tests.forked import Process, start_program
from tests.processes import read_of

LONG_AGO_S = 1_000_000_000
SUMMARY = re.compile(
    r"Indexed (?P<files>[\d,]+) files?, (?P<new>[\d,]+) new, (?P<changed>[\d,]+) changed, (?P<removed>[\d,]+) removed,"
    r" (?P<unread>[\d,]+) could not be read; (?P<passages>[\d,]+) passages?, (\d+\.\d MB|\d+ kB)\.\n$"
)
LONG = 400
TRIES = 10
PRINTED = "printed"
BINARY = b"\x00\xff\x80\x01" * 100


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with three documents."""
    folder = tmp_path / "docs"
    write(folder, "a.md", "Zebras have stripes.")
    write(folder, "b.txt", "Giraffes have spots.")
    write(folder, "sub/c.md", "Elephants have trunks.")
    return folder


def write(folder: Path, name: str, text: str | bytes, age_s: int = LONG_AGO_S) -> None:
    """Write a file that was last changed so many seconds after 1970."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(path, (age_s, age_s))


def index(folder: Path, *args: str) -> Done:
    done = run_here(folder, "index", *args)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done


def counts(done: Done) -> dict[str, int]:
    found = SUMMARY.search(done.stderr)
    assert found, done.stderr
    return {name: int(value.replace(",", "")) for name, value in found.groupdict().items()}


def changes(done: Done) -> tuple[int, int, int, int]:
    """New, changed, removed and unread files."""
    found = counts(done)
    return found["new"], found["changed"], found["removed"], found["unread"]


def folders(folder: Path, *args: str) -> list[dict[str, object]]:
    done = run_here(folder, "index", "--json", *args)
    assert done.returncode == 0, done.stderr
    listed: list[dict[str, object]] = json.loads(done.stdout)
    return listed


def refused(done: Done) -> str:
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith("cadenza: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_first_run_indexes_all_and_a_second_one_nothing(tmp_path: Path, docs: Path) -> None:
    """The closing line has the counts; without a terminal it is all that is said."""
    first, second = index(tmp_path, "docs"), index(tmp_path, "docs")
    assert first.stderr.startswith("Indexed 3 files, 3 new, 0 changed, 0 removed, 0 could not be read; 3 passages, ")
    assert second.stderr.startswith("Indexed 3 files, 0 new, 0 changed, 0 removed, 0 could not be read; 3 passages, ")
    assert first.stderr.count("\n") == second.stderr.count("\n") == 1
    assert re.search(r" passages, \d\d kB\.$", first.stderr)


def test_only_what_changed_is_read(tmp_path: Path, docs: Path) -> None:
    """A file counts as changed by its size or time and its content, deleted files leave, and a renamed one is new."""
    index(tmp_path, "docs")
    write(docs, "a.md", "Zebras have 100 stripes.")
    assert changes(index(tmp_path, "docs")) == (0, 1, 0, 0)
    write(docs, "a.md", "Zebras have 200 stripes.", LONG_AGO_S + 1)
    assert changes(index(tmp_path, "docs")) == (0, 1, 0, 0)
    write(docs, "a.md", "Zebras have 200 stripes.", LONG_AGO_S + 2)
    assert changes(index(tmp_path, "docs")) == (0, 0, 0, 0)
    write(docs, "a.md", "Zebras have 300 stripes.", LONG_AGO_S + 2)  # neither size nor time tells
    assert changes(index(tmp_path, "docs")) == (0, 0, 0, 0)
    (docs / "b.txt").rename(docs / "renamed.txt")
    assert changes(index(tmp_path, "docs")) == (1, 0, 1, 0)
    shutil.rmtree(docs / "sub")
    assert counts(index(tmp_path, "docs"))["files"] == 2


def test_a_file_that_changed_just_now_is_compared_by_its_content(tmp_path: Path, docs: Path) -> None:
    """Two changes within one tick of the clock, of the same size, are both seen."""
    now_s = int(time.time()) + 1000
    write(docs, "a.md", "Zebras have 1 stripe.", now_s)
    index(tmp_path, "docs")
    assert changes(index(tmp_path, "docs")) == (0, 0, 0, 0)
    write(docs, "a.md", "Zebras have 2 stripe.", now_s)
    assert changes(index(tmp_path, "docs")) == (0, 1, 0, 0)


def test_what_cannot_be_read_is_listed_and_tried_again(tmp_path: Path, docs: Path) -> None:
    """The list has names and reasons. The rest is indexed, and the next run tries the file again."""
    write(docs, "bad\x1b[31m.md", BINARY)
    done = index(tmp_path, "docs")
    assert re.search(r"^Could not read bad�\[31m\.md: it is not .*text.*\.$", done.stderr, re.MULTILINE)
    assert changes(done) == (3, 0, 0, 1)
    assert changes(index(tmp_path, "docs")) == (0, 0, 0, 1)
    [listed] = folders(tmp_path)
    assert (listed["files"], listed["unreadable"]) == (3, 1)
    write(docs, "bad\x1b[31m.md", "Readable now.")
    assert changes(index(tmp_path, "docs")) == (0, 1, 0, 0)
    write(docs, "a.md", BINARY)
    assert changes(index(tmp_path, "docs")) == (0, 0, 0, 1)
    assert counts(index(tmp_path, "docs"))["passages"] == 3


def test_names_that_are_not_utf8_count_as_unreadable(tmp_path: Path, docs: Path) -> None:
    """A run and the list count the same files, on every run, until they have a readable name or are gone."""
    write(docs, "bad.md", BINARY)
    odd, odd_folder = docs / os.fsdecode(b"caf\xe9.md"), docs / os.fsdecode(b"\xe9t\xe9")
    odd.write_text("Coffee.")
    odd_folder.mkdir()
    write(docs, "caf\\udce9.md", "Its name is what the other one would be written as.")
    for new in (4, 0):
        assert changes(index(tmp_path, "docs")) == (new, 0, 0, 3)
        [listed] = folders(tmp_path)
        assert (listed["files"], listed["unreadable"], listed["passages"]) == (4, 3, 4)
    odd.rename(docs / "café.md")
    odd_folder.rmdir()
    assert changes(index(tmp_path, "docs")) == (1, 0, 0, 1)
    [listed] = folders(tmp_path)
    assert (listed["files"], listed["unreadable"]) == (5, 1)


def test_the_list_of_unreadable_files_is_short(tmp_path: Path, docs: Path) -> None:
    """Twenty are named, and the others counted."""
    for number in range(25):
        write(docs, f"{number}.bin", BINARY)
    done = index(tmp_path, "docs")
    assert done.stderr.count("Could not read") == 20
    assert "… and 5 more.\n" in done.stderr


def test_a_large_file_is_not_read(tmp_path: Path, docs: Path) -> None:
    """A file above the limit is listed with the limit."""
    with (docs / "large.txt").open("wb") as file:
        file.truncate(32 * 1024 * 1024 + 1)
    assert "Could not read large.txt: it is larger than 32 MiB.\n" in index(tmp_path, "docs").stderr


def test_folders_are_listed_and_removed(tmp_path: Path, docs: Path) -> None:
    """The list is a table or a JSON array, oldest first; a removed folder leaves it, even if it is gone already."""
    listed = run_here(tmp_path, "index")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert "There is no index at " in listed.stderr
    assert folders(tmp_path) == []
    write(tmp_path, "more/d.md", "Lions roar.")
    index(tmp_path, "docs", "--url", "https://docs.example/animals")
    index(tmp_path, "more")
    first, second = folders(tmp_path)
    assert list(first) == ["folder", "url", "files", "unreadable", "passages", "indexed_at"]
    assert (first["folder"], first["url"], first["passages"]) == (str(docs), "https://docs.example/animals/", 3)
    assert (second["folder"], second["url"], second["files"]) == (str(tmp_path / "more"), None, 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", str(first["indexed_at"]))
    shutil.rmtree(docs)
    assert "run 'cadenza index docs --remove'" in refused(run_here(tmp_path, "index", "docs"))
    assert index(tmp_path, "docs", "--remove").stderr == f"Removed {docs} from the index: 3 files.\n"
    table = run_here(tmp_path, "index").stdout
    assert str(tmp_path / "more") in table
    assert str(docs) not in table
    assert "docs is not in the index" in refused(run_here(tmp_path, "index", "docs", "--remove"))


def test_the_address_of_a_folder_is_kept(tmp_path: Path, docs: Path) -> None:
    """A run without --url keeps the address, another one replaces it, and an empty one removes it."""
    index(tmp_path, "docs", "--url", "https://one.example/x/")
    index(tmp_path, "docs")
    assert folders(tmp_path)[0]["url"] == "https://one.example/x/"
    index(tmp_path, "docs", "--url", "http://two.example")
    assert folders(tmp_path)[0]["url"] == "http://two.example/"
    index(tmp_path, "docs", "--url", "")
    assert folders(tmp_path)[0]["url"] is None


def test_the_index_is_beside_the_config(tmp_path: Path, docs: Path) -> None:
    """It is data/index.db beside the config file, or in the working folder, or where --index says."""
    index(tmp_path, "docs")
    assert (tmp_path / "data" / "index.db").is_file()
    write(tmp_path, "etc/cadenza.toml", "")
    index(tmp_path, "docs", "--config", "etc/cadenza.toml")
    assert (tmp_path / "etc" / "data" / "index.db").is_file()
    index(tmp_path, "docs", "--index", "elsewhere/my.db")
    assert (tmp_path / "elsewhere" / "my.db").is_file()
    assert len(folders(tmp_path, "--index", "elsewhere/my.db")) == 1


def test_mistakes_are_one_sentence(tmp_path: Path, docs: Path) -> None:
    """A folder that does not exist, a file, a folder in an indexed one or around it, and a file that is no index."""
    index(tmp_path, "docs")
    assert "The folder nowhere cannot be read: No such file" in refused(run_here(tmp_path, "index", "nowhere"))
    assert "cannot be read: Not a directory" in refused(run_here(tmp_path, "index", "docs/a.md"))
    assert "which is indexed already" in refused(run_here(tmp_path, "index", "docs/sub"))
    assert "remove that first" in refused(run_here(tmp_path, "index", "."))
    assert "cannot be used" in refused(run_here(tmp_path, "index", "docs", "--index", "docs/a.md"))
    assert (docs / "a.md").read_text() == "Zebras have stripes."
    assert "There is no index at nope.db" in refused(run_here(tmp_path, "index", "--index", "nope.db"))
    assert len(folders(tmp_path)) == 1


def test_documents_that_are_not_searched_are_told(tmp_path: Path, docs: Path) -> None:
    """If the config names an engine of the web, or turns search off, a run says that they are not searched."""
    config = '[grounding.search]\nengine = "searxng"\nurl = "http://127.0.0.1:8888"\n'
    write(tmp_path, "cadenza.toml", config)
    assert 'not searched: [grounding.search] has engine = "searxng"' in index(tmp_path, "docs").stderr
    write(tmp_path, "cadenza.toml", "[grounding]\nsearch = false\n")
    done = index(tmp_path, "docs")
    assert "not searched: search is turned off in the config. Remove search = false" in done.stderr
    assert "Indexed 3 files" in done.stderr


@pytest.mark.parametrize(
    "args", [("--remove",), ("--url", "https://x.example"), ("docs", "--json"), ("docs", "--url", "ftp://x.example")]
)
def test_options_that_do_not_fit_are_a_usage_error(tmp_path: Path, docs: Path, args: tuple[str, ...]) -> None:
    """Options that need a folder, or none, and an address that is not of the web are refused; nothing is made."""
    done = run_here(tmp_path, "index", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert not (tmp_path / "data").exists()


def test_a_bar_shows_progress_on_a_terminal(tmp_path: Path, docs: Path) -> None:
    """On a terminal, standard error has a bar that reaches 100%; standard output stays empty."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "index", "docs"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):  # the error is its end
        while more := terminal.read(4096):
            shown += more
    out, _ = process.communicate(timeout=COMMAND_S)
    assert (process.returncode, out) == (0, b"")
    assert b"Indexing" in shown
    assert b"100%" in shown
    assert b"Indexed 3 files, 3 new" in shown


@contextmanager
def begun_run(folder: Path) -> Iterator[Process]:
    """A run that has indexed some files of many, and is then paused."""
    for number in range(LONG):
        write(folder / "docs", f"{number:04}.md", f"Zebra {number} has stripes.\n" * 300)
    process = next((begun for _ in range(TRIES) if (begun := begin_and_pause(folder))), None)
    assert process, "no run could be paused in time"
    try:
        yield process
    finally:
        process.kill()
        process.wait(COMMAND_S)


def begin_and_pause(folder: Path) -> Process | None:
    """A run that is paused before the middle; none if it got further while this process stood still."""
    with (folder / PRINTED).open("wb") as out:
        process = start_program([str(PROGRAM), "index", "docs"], folder, environment(), out)
    wait_until(lambda: bool(files_so_far(folder)), "the first files to be indexed")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(process), "the pause")
    if files_so_far(folder) <= LONG // 2:
        return process
    process.kill()
    process.wait(COMMAND_S)
    shutil.rmtree(folder / "data")
    return None


def is_stopped(process: Process) -> bool:
    """Whether it is paused, or has ended."""
    return process.poll() is not None or b") T " in read_of(process.pid, "stat")


@pytest.mark.slow(reason="a long run of the command")
def test_a_run_that_is_stopped_leaves_a_good_index(tmp_path: Path) -> None:
    """After Ctrl-C the files so far are indexed, the exit code says so, and the next run does the rest."""
    with begun_run(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        code, said = process.wait(COMMAND_S), (tmp_path / PRINTED).read_text()
    assert code == 130, said
    assert said == "Stopped. What was indexed so far is in the index; the next run goes on from there.\n"
    so_far = files_so_far(tmp_path)
    assert 0 < so_far < LONG
    assert counts(index(tmp_path, "docs"))["new"] == LONG - so_far


def files_so_far(folder: Path) -> int:
    """How many files are in the index, which may not be there yet."""
    address = f"file:{folder}/data/index.db?mode=ro"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(address, uri=True)) as database:
        return int(database.execute("SELECT count(*) FROM files").fetchone()[0])
    return 0


@pytest.mark.slow(reason="a long run of the command")
def test_a_second_run_at_the_same_time_says_so(tmp_path: Path) -> None:
    """While a run works, another one ends with a sentence, and the first one finishes."""
    with begun_run(tmp_path) as process:
        assert "Another 'cadenza index' is writing to" in refused(run_here(tmp_path, "index", "docs"))
        process.send_signal(signal.SIGCONT)
        code, said = process.wait(COMMAND_S), (tmp_path / PRINTED).read_text()
    assert code == 0, said
    assert f"Indexed {LONG} files" in said


def test_the_index_does_not_index_itself(tmp_path: Path, docs: Path) -> None:
    """The index and the files beside it are left out, if they are in the folder."""
    for _ in range(2):
        assert counts(index(tmp_path, "docs", "--index", "docs/index.db"))["files"] == 3
