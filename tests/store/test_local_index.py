"""The index of local documents: what is stored, what a reader sees, and files that are not a usable index."""

import contextlib
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cadenza.grounding.files.records import Section
from cadenza.grounding.index.local_index import (
    APPLICATION_ID,
    VERSION,
    IndexUnusable,
    StoredFile,
    list_folders,
    open_reader,
    open_writer,
    why_not_an_index,
)

PATIENT_S = 60.0
ROUNDS = 150
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "index.db"


def put(path: Path, *texts: str, name: str = "a.txt", folder: str = "/srv") -> None:
    """Store one file whose passages have these texts."""
    with open_writer(path) as writer:
        folder_id = writer.put_folder(folder, None, 0)
        writer.put_file(folder_id, StoredFile(name, 1, 1, b"d"), [Section("", text) for text in texts])


def find(path: Path, *words: str, time_s: float = PATIENT_S) -> list[str]:
    """The texts of the passages that have one of the words."""
    with open_reader(path, time_s) as reader:
        terms = reader.terms(words)
        return [found.text for found in reader.find(terms, terms, 100)]


def change(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Root may write everywhere, so be somebody else for a moment."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def refusals(path: Path) -> Sequence[str]:
    """What writing, reading and listing say about this file."""
    said = list[str]()
    for use in (lambda: put(path, "x"), lambda: find(path, "x"), lambda: list_folders(path)):
        with pytest.raises(IndexUnusable) as refused:
            use()
        said.append(str(refused.value))
    return said


def test_a_file_is_replaced_as_a_whole(path: Path) -> None:
    """The passages of a file that is stored again replace the old ones, and those of other files stay."""
    put(path, "one zebra", "two zebras")
    put(path, "a zebra elsewhere", name="b.txt")
    put(path, "three zebras")
    assert sorted(find(path, "zebra")) == ["a zebra elsewhere", "three zebras"]
    [folder] = list_folders(path)
    assert (folder.files, folder.passages, folder.unreadable) == (2, 2, 0)


def test_a_removed_file_is_not_counted(path: Path) -> None:
    """After a removal neither the passages nor the frequencies of its words have it."""
    put(path, "one zebra", "one giraffe")
    put(path, "one zebra", name="b.txt")
    with open_writer(path) as writer:
        [folder] = writer.folders()
        writer.remove_file(folder.id, "a.txt")
    with open_reader(path, PATIENT_S) as reader:
        assert [(term.word, term.passages) for term in reader.terms(["zebra", "giraffe"])] == [
            ("zebra", 1),
            ("giraffe", 0),
        ]
        assert reader.passages() == 1


def test_a_removed_folder_leaves_no_text(path: Path) -> None:
    """After the removal of a folder its words are nowhere in the file."""
    put(path, "the secret zebra", folder="/one")
    put(path, "a public giraffe", folder="/two")
    with open_writer(path) as writer:
        [one, _] = writer.folders()
        writer.remove_folder(one.id)
    assert [folder.path for folder in list_folders(path)] == ["/two"]
    files = b"".join(file.read_bytes() for file in path.parent.iterdir() if file.is_file())
    assert b"zebra" not in files
    assert b"giraffe" in files


def test_words_in_the_path_of_a_file_count(path: Path) -> None:
    """A passage is found by the name of its file and folder, but not by the name's ending."""
    put(path, "within 45 days", name="policies/refund-rules.md")
    assert find(path, "refunds") == find(path, "policy") == ["within 45 days"]
    assert find(path, "md") == []


def test_words_of_names_are_found(path: Path) -> None:
    """The name of the indexed folder counts too, and so do the parts of a name in one word."""
    put(path, "a room", name="TravelCosts2026.docx", folder="/srv/handbook")
    for word in ("handbook", "travel", "cost", "2026", "travelcosts2026"):
        assert find(path, word) == ["a room"], word


def test_folders_of_one_name_differ(path: Path) -> None:
    """What is found says which folder it is from, also where two have the same name."""
    for folder in ("/one/handbook", "/two/handbook", "/three/handbook-2", "/"):
        put(path, "a zebra", folder=folder)
    with open_reader(path, PATIENT_S) as reader:
        terms = reader.terms(["zebra"])
        names = {found.folder for found in reader.find(terms, terms, 10)}
    assert names == {"handbook", "handbook-2", "handbook-2-2", "root"}


def test_a_moment_of_the_index_stays_the_same(path: Path) -> None:
    """A reader that is open while a file is replaced sees the old one to its end; the next reader sees the new one."""
    put(path, "old zebra")
    with open_reader(path, PATIENT_S) as reader:
        terms = reader.terms(["zebra"])
        put(path, "new zebra")
        assert [found.text for found in reader.find(terms, terms, 10)] == ["old zebra"]
    assert find(path, "zebra") == ["new zebra"]


def test_a_file_that_is_being_stored_is_not_seen_in_part(path: Path) -> None:
    """A failure in the middle of a file leaves what was there before."""
    put(path, "old zebra")
    with pytest.raises(UnicodeEncodeError):
        put(path, "new zebra", "\ud800")
    assert find(path, "zebra") == ["old zebra"]


def test_readers_beside_a_writer_see_whole_files(path: Path) -> None:
    """While one thread replaces a file of 20 passages, each reader sees 20 passages of one version."""
    put(path, *["zebra 0"] * 20)
    is_over, seen = threading.Event(), list[list[str]]()

    def read() -> None:
        while True:
            seen.append(find(path, "zebra"))
            if is_over.is_set():
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with open_writer(path) as writer:
            [folder] = writer.folders()
            for version in range(ROUNDS):
                passages = [Section("", f"zebra {version}")] * 20
                writer.put_file(folder.id, StoredFile("a.txt", 1, 1, b"d"), passages)
    finally:
        is_over.set()
        reader.join()
    assert {(len(texts), len(set(texts))) for texts in seen} == {(20, 1)}


def test_a_second_writer_is_refused(path: Path) -> None:
    """Only one writer works on an index; the next one can when it has ended."""
    with open_writer(path), pytest.raises(IndexUnusable, match="Another 'cadenza index' is writing to"):
        put(path, "x")
    put(path, "x")


def test_the_index_is_private(path: Path) -> None:
    """Folder and file are made for their owner only."""
    put(path, "x")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_first_bytes_tell_an_index(path: Path) -> None:
    """An index is known by its header, also while a writer has it open; a folder and a missing file are not one."""
    put(path, "x")
    assert why_not_an_index(path) is None
    with open_writer(path):
        assert why_not_an_index(path) is None
    assert why_not_an_index(path.parent) == "cannot be opened: Is a directory"
    assert why_not_an_index(path.with_name("none.db")) == "cannot be opened: No such file or directory"


def test_an_empty_file_becomes_an_index(path: Path) -> None:
    """A run that was killed before it made the tables leaves an empty file, which is no index yet."""
    path.parent.mkdir()
    path.touch()
    assert list_folders(path) == []
    put(path, "zebra")
    assert find(path, "zebra") == ["zebra"]


@pytest.mark.parametrize("kind", ["text", "database"])
def test_a_foreign_file_is_never_changed(path: Path, kind: str) -> None:
    """A text file and another program's database are refused in one sentence and keep their bytes."""
    path.parent.mkdir()
    if kind == "text":
        path.write_text("My notes. " * 1000)
    else:
        change(path, "CREATE TABLE notes (text)", "INSERT INTO notes VALUES ('mine')")
    before = path.read_bytes(), path.stat().st_mode
    assert why_not_an_index(path) == "is not a search index"
    for sentence in refusals(path):
        assert str(path) in sentence
        assert "\n" not in sentence
    assert (path.read_bytes(), path.stat().st_mode) == before


def test_an_index_of_another_version_is_never_changed(path: Path) -> None:
    """An index with another schema is refused; the sentence names both versions."""
    put(path, "zebra")
    change(path, f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    assert all(f"it has schema {VERSION + 1}, and this version reads schema {VERSION}" in one for one in refusals(path))
    assert path.read_bytes() == before
    change(path, f"PRAGMA user_version = {VERSION}")
    assert find(path, "zebra") == ["zebra"]


def test_a_damaged_index_is_told_in_one_sentence(path: Path) -> None:
    """Pages that were overwritten are found out, and the sentence says what to do."""
    put(path, *[f"zebra {number} {'grass ' * 150}" for number in range(200)])
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(IndexUnusable, match="If it is damaged, move it away and index again"):
        find(path, "zebra")


def test_a_folder_in_place_of_the_index_is_refused(path: Path) -> None:
    """A path that is a folder is told in one sentence."""
    path.mkdir(parents=True)
    assert all(str(path) in sentence for sentence in refusals(path))


def test_a_read_only_folder_can_be_searched(path: Path) -> None:
    """An index in a folder where nothing can be made, as in a mounted image, is read."""
    put(path, "zebra")
    with tempfile.TemporaryDirectory() as made:  # the folder of a test is closed to others
        folder = Path(made, "data")
        shutil.copytree(path.parent, folder)
        (folder / path.name).chmod(0o444)
        folder.chmod(0o555)
        Path(made).chmod(0o755)
        with without_root():
            assert find(folder / path.name, "zebra") == ["zebra"]
        assert not list(folder.glob("*-wal"))
        folder.chmod(0o755)


def test_a_reader_has_a_time_limit(path: Path) -> None:
    """A search beyond its time is a TimeoutError, and the next one works."""
    put(path, *[f"zebra {number}" for number in range(2000)])
    with pytest.raises(TimeoutError):
        find(path, "zebra", time_s=0.0)
    assert len(find(path, "zebra")) == 100


def test_a_reader_cannot_write(path: Path) -> None:
    """The connection of a reader refuses changes, and the file says that it is an index."""
    put(path, "zebra")
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    before = path.read_bytes()
    assert find(path, "zebra") == ["zebra"]
    assert path.read_bytes() == before
