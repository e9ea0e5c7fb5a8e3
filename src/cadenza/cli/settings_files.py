"""Writes settings into the file of a client. What the file has stays: a setting that is there already is refused.

A file is replaced at once, and only its owner may read it, because it has a key.
"""

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A new file, which replaces this one after the block if that succeeds. ValueError if the file system refuses."""
    path = path.resolve()  # a symbolic link stays one
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # its mode is 0600
        os.close(descriptor)
        draft = Path(name)
        try:
            yield draft
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}.") from None


def merge_settings(path: Path, kind: str, new: str) -> str:
    """The text of the file with the new settings in it. ValueError if that would change what it has."""
    merge = {"json": _merge_json, "toml": _merge_toml}.get(kind, _merge_yaml)
    try:
        old = path.read_bytes().decode() if path.exists() else ""
        return merge(old, new) if old.strip() else new
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        reason = "is not UTF-8" if isinstance(error, UnicodeError) else error
        advice = "Change that, or leave out --write and put in by hand what the command prints."
        raise ValueError(f"{path} {reason}. {advice}") from None


def _merge_json(old: str, new: str) -> str:
    try:
        there = json.loads(old)
    except ValueError:
        there = None
    if isinstance(there, dict):
        return json.dumps(_merge_tables(there, json.loads(new)), indent=2, ensure_ascii=False) + "\n"
    raise ValueError("is not a plain JSON object")  # comments are not JSON, and would be lost


def _merge_toml(old: str, new: str) -> str:
    """Keys stand before the first table, and tables after the last one."""
    try:
        there = tomllib.loads(old)
    except ValueError:
        raise ValueError("is not valid TOML") from None
    merged = _merge_tables(there, tomllib.loads(new))
    keys, bracket, tables = new.partition("\n[")
    text = f"{keys}\n{old.rstrip()}\n{bracket}{tables}"
    try:
        is_whole = tomllib.loads(text) == merged
    except ValueError:  # a key or a table twice
        is_whole = False
    if not is_whole:
        raise ValueError("already has some of these settings")
    return text


def _merge_yaml(old: str, new: str) -> str:
    """Append settings to a file with a setting at the start of a line."""
    if re.search(r"^[^\s\w#\"'-]", old, re.MULTILINE):
        raise ValueError("is not a plain YAML mapping")
    names = re.findall(r"^([\w-]+):", new, re.MULTILINE)
    _refuse([name for name in names if re.search(rf"^[\"']?{name}[\"']?\s*:", old, re.MULTILINE)])
    return f"{old.rstrip()}\n{new}"


def _merge_tables(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    clashes: list[str] = []
    merged = _add(old, new, "", clashes)
    _refuse(clashes)
    return merged


def _add(old: dict[str, Any], new: dict[str, Any], place: str, clashes: list[str]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        there = old.get(name, value)
        if isinstance(there, dict) and isinstance(value, dict):
            merged[name] = _add(there, value, f"{place}{name}.", clashes)
        elif isinstance(there, list) and isinstance(value, list):
            merged[name] = [*there, *(item for item in value if item not in there)]
        elif there == value:
            merged[name] = value
        else:
            clashes.append(f"{place}{name}")
    return merged


def _refuse(clashes: list[str]) -> None:
    if clashes:
        raise ValueError(f"already has {', '.join(clashes)}")
