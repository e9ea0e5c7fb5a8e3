"""A run over a folder, where things happen between the listing of its files and their reading."""

from pathlib import Path

import pytest

from cadenza.core.errors import ControlError
from cadenza.grounding.files.reader import ReaderBusy
from cadenza.grounding.files.records import Section
from cadenza.grounding.index.folder_files import FolderBounds, FolderContent, UnreadEntry
from cadenza.grounding.index.indexing import Indexed, IndexTask, index_folder, scan_folder
from cadenza.grounding.index.local_index import open_reader

LATE_MS = 10**13  # long after the files were written


class LineReader:
    """Reads each line as a passage. It fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self._failures = failures

    async def read_passages(self, owner: str, name: str, data: bytes) -> list[Section]:
        if self._failures:
            self._failures -= 1
            raise ReaderBusy
        return [Section("", line) for line in data.decode().splitlines()]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("zebra")
    (folder / "sub" / "b.md").write_text("giraffe")
    return folder


def look(docs: Path) -> FolderContent:
    return scan_folder(docs, docs.with_name("index.db"))


async def run(content: FolderContent, failures: int = 0) -> Indexed:
    task, index = IndexTask(content, None, LATE_MS), content.folder.with_name("index.db")
    return await index_folder(index, task, LineReader(failures), lambda: None)


def passages_with(docs: Path, word: str) -> int:
    with open_reader(docs.with_name("index.db"), 60.0) as reader:
        [term] = reader.terms([word])
    return term.passages


async def test_a_reader_that_fails_leaves_the_old_text(docs: Path) -> None:
    """The file is listed as unread and keeps its old text; the next run reads it."""
    await run(look(docs))
    (docs / "a.md").write_text("a lion")
    done = await run(look(docs), failures=1)
    assert [one.path for one in done.unread] == ["a.md"]
    assert (passages_with(docs, "zebra"), passages_with(docs, "lion")) == (1, 0)
    assert (await run(look(docs))).changed == 1
    assert (passages_with(docs, "zebra"), passages_with(docs, "lion")) == (0, 1)


async def test_a_file_that_is_deleted_after_it_was_listed_is_removed(docs: Path) -> None:
    """A file that is gone when its turn comes leaves the index, and is no error."""
    await run(look(docs))
    (docs / "a.md").write_text("a lion")
    content = look(docs)
    (docs / "a.md").unlink()
    done = await run(content)
    assert (done.files, done.removed, done.unread) == (1, 1, ())


async def test_only_files_that_could_be_searched_count_as_removed(docs: Path) -> None:
    """A deleted file that could not be read was not in the list of indexed files, and is not counted."""
    (docs / "huge.md").write_bytes(b"x" * 100)
    small = FolderBounds(file_bytes_max=50)

    async def run_small() -> Indexed:
        task = IndexTask(look(docs), None, LATE_MS, small)
        return await index_folder(docs.with_name("index.db"), task, LineReader(), lambda: None)

    assert len((await run_small()).unread) == 1
    for name in ("huge.md", "a.md"):
        (docs / name).unlink()
    done = await run_small()
    assert (done.files, done.removed, done.unread) == (1, 1, ())


async def test_a_file_that_changes_after_it_was_listed_is_stored_as_it_was_read(docs: Path) -> None:
    """The next run finds it unchanged."""
    content = look(docs)
    (docs / "a.md").write_text("a lion and a tiger")
    assert (await run(content)).new == 2
    assert passages_with(docs, "tiger") == 1
    again = await run(look(docs))
    assert (again.new, again.changed) == (0, 0)


async def test_files_of_a_folder_that_cannot_be_opened_stay(docs: Path) -> None:
    """A folder that could not be opened this time is listed, and its files are not taken for deleted."""
    await run(look(docs))
    content = look(docs)
    closed = FolderContent(content.folder, content.files[:1], (UnreadEntry("sub", "permission denied"),))
    done = await run(closed)
    assert (done.files, done.removed, len(done.unread)) == (2, 0, 1)


def test_a_folder_with_too_many_files_is_refused(docs: Path) -> None:
    """The sentence names the limit."""
    with pytest.raises(ControlError, match="has more than 1 files"):
        scan_folder(docs, docs.with_name("index.db"), FolderBounds(files_max=1))
