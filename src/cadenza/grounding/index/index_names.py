"""The names in the index of the local search engine: what a folder is called, and which words of a path are found."""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from cadenza.grounding.files.ranking import spaced

ROOT_NAME = "root"  # of the folder "/", which has none
WORD_STARTS = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[0-9])(?=[A-Za-z])")


def folder_names(folders: Iterable[tuple[int, str]]) -> dict[int, str]:
    """A name for each folder, by id: the last part of its path. No two are the same, so the second has a number."""
    names = dict[int, str]()
    taken = set[str]()
    for folder_id, path in folders:
        name = unique = _last_part(path)
        number = 1
        while unique in taken:
            number += 1
            unique = f"{name}-{number}"
        taken.add(unique)
        names[folder_id] = unique
    return names


def words_of_path(folder: str, path: str) -> str:
    """What is found of the name of a file: its folders and its name, without the ending; "TravelCosts2026" in parts."""
    name = f"{_last_part(folder)}/{path.rpartition('.')[0] or path}"
    return spaced(_with_parts(name.split("/")))


def _last_part(folder: str) -> str:
    return PurePosixPath(folder).name or ROOT_NAME


def _with_parts(names: Sequence[str]) -> str:
    parts = [WORD_STARTS.sub(" ", name) for name in names]
    return " ".join([*names, *(part for name, part in zip(names, parts, strict=True) if part != name)])
