"""Finds the file, parses it and hands it to the sections. Nothing is used of a file with a mistake in it."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from cadenza.config.checks import Table
from cadenza.config.reader import Reader
from cadenza.config.sections import read_settings
from cadenza.config.settings import ConfigError, Settings

CONFIG_VARIABLE = "CADENZA_CONFIG"
CONFIG_NAME = "cadenza.toml"


def load_settings(path: str | None, environ: Mapping[str, str], cwd: Path) -> Settings:
    """From `path` (--config), else $CADENZA_CONFIG, else cadenza.toml in `cwd`, else the built-in default."""
    source, how = _find_file(path, environ, cwd.absolute())
    source_text = _read_file(source, how) if source else ""
    raw = _parse(source_text, source)
    reader = Reader(source_text, source.parent if source else cwd.absolute())
    settings = read_settings(raw, reader, source, environ)
    if problems := reader.problems():
        raise ConfigError(problems, source)
    return settings


def _find_file(path: str | None, environ: Mapping[str, str], cwd: Path) -> tuple[Path | None, str]:
    """The file, and how it was found."""
    if path is not None:
        return cwd / path, "named by --config"
    if named := environ.get(CONFIG_VARIABLE):
        return cwd / named, f"named by ${CONFIG_VARIABLE}"
    found = cwd / CONFIG_NAME
    return (found if found.exists() else None), "found in the working folder"


def _read_file(source: Path, how: str) -> str:
    try:
        return source.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError([f"the file {how} cannot be read: {error.strerror}"], source) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"the file {how} is not UTF-8 text"], source) from error


def _parse(source_text: str, source: Path | None) -> Table:
    try:
        return tomllib.loads(source_text)
    except ValueError as error:
        raise ConfigError([_syntax_problem(str(error), source_text)], source) from error


def _syntax_problem(message: str, source_text: str) -> str:
    """The parser's message with its place in front."""
    reason, _, place = message.rpartition(" (at ")
    if found := re.fullmatch(r"line (\d+), column (\d+)\)", place):
        line, column = found.groups()
        return f"line {line}, column {column}: not valid TOML: {reason}"
    if place == "end of document)":
        lines = source_text.split("\n")
        return f"line {len(lines)}, column {len(lines[-1]) + 1}: not valid TOML: {reason}"
    return f"not valid TOML: {message}"
