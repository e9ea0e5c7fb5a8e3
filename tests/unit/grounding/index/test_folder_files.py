"""The files of a folder: which ones are listed, and that nothing outside is read."""

import os
from pathlib import Path

import pytest

from cadenza.grounding.index.folder_files import FileChanged, FolderBounds, list_files, read_file

BOUNDS = FolderBounds()


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text")


def names(folder: Path) -> list[str]:
    return [file.path for file in list_files(folder, BOUNDS).files]


def test_hidden_and_generated_files_are_left_out(tmp_path: Path) -> None:
    """Hidden files and folders, and the folders of package managers, are not listed; all others are, sorted."""
    write(tmp_path, "b.md", "a/deep/er.txt", "no_ending", "a.node_modules", "venv.md")
    write(tmp_path, ".env", ".git/config", "a/.venv/x.py", "node_modules/x/readme.md", "a/__pycache__/x.txt")
    assert names(tmp_path) == ["a.node_modules", "a/deep/er.txt", "b.md", "no_ending", "venv.md"]


def test_only_regular_files_are_listed(tmp_path: Path) -> None:
    """Links, to files and folders, inside and outside, and pipes are left out."""
    write(tmp_path, "inside/a.md", "outside/secret.md")
    folder = tmp_path / "inside"
    (folder / "file").symlink_to(tmp_path / "outside" / "secret.md")
    (folder / "folder").symlink_to(tmp_path / "outside")
    (folder / "loop").symlink_to(folder)
    (folder / "nowhere").symlink_to("missing")
    os.mkfifo(folder / "pipe")
    assert names(folder) == ["a.md"]


def test_a_name_that_is_not_utf8_is_noted(tmp_path: Path) -> None:
    """Such a file cannot be stored; it is listed as one that cannot be read."""
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff.md")).write_text("text")
    content = list_files(tmp_path, BOUNDS)
    assert (content.files, [one.reason for one in content.unread]) == ((), ["its name is not UTF-8"])


@pytest.mark.parametrize("part", ["file", "folder"])
def test_a_link_that_takes_the_place_of_a_part_is_not_followed(tmp_path: Path, part: str) -> None:
    """A file or folder that becomes a link after it was listed is not read through the link."""
    write(tmp_path, "inside/sub/a.md", "outside/a.md")
    folder = tmp_path / "inside"
    assert names(folder) == ["sub/a.md"]
    (folder / "sub" / "a.md").unlink()
    if part == "folder":
        (folder / "sub").rmdir()
        (folder / "sub").symlink_to(tmp_path / "outside")
    else:
        (folder / "sub" / "a.md").symlink_to(tmp_path / "outside" / "a.md")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        read_file(folder, "sub/a.md", BOUNDS)


def test_a_file_that_is_read_while_it_changes_is_refused() -> None:
    """A file with another size than what was read, as the ones of /proc always are, is not used."""
    with pytest.raises(FileChanged):
        read_file(Path("/proc/self"), "status", BOUNDS)


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    """A pipe that took the place of a file is refused at once."""
    os.mkfifo(tmp_path / "a.md")
    with pytest.raises(FileChanged):
        read_file(tmp_path, "a.md", BOUNDS)


def test_a_file_that_grew_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """No more than the limit is read."""
    write(tmp_path, "a.md")
    with pytest.raises(FileChanged):
        read_file(tmp_path, "a.md", FolderBounds(file_bytes_max=3))
    assert read_file(tmp_path, "a.md", FolderBounds(file_bytes_max=4))[1] == b"text"
