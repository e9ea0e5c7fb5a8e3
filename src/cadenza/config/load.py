"""Finds the file, parses it and builds the settings from it. A file with a mistake is not used at all."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from cadenza.config.build import build_settings
from cadenza.config.checks import CheckError, Table
from cadenza.config.read import Reader, read_file
from cadenza.config.settings import ConfigError, Settings

CONFIG_VARIABLE = "CADENZA_CONFIG"
CONFIG_NAME = "cadenza.toml"


def load_settings(path: str | None, environ: Mapping[str, str], cwd: Path) -> Settings:
    """From `path` (--config), else $CADENZA_CONFIG, else cadenza.toml in `cwd`, else the built-in default."""
    source, how = _find_file(path, environ, cwd.absolute())
    try:
        source_text = read_file(source) if source else ""
    except CheckError as mistake:
        raise ConfigError([f"the file {how} {mistake}"], source) from None
    reader = Reader(source_text, source.parent if source else cwd.absolute())
    settings = build_settings(_parse(source_text, source), reader, source, environ)
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


def _parse(source_text: str, source: Path | None) -> Table:
    """The file's tables. A syntax error is the only problem reported, with its place where the parser tells it."""
    try:
        return tomllib.loads(source_text)
    except ValueError as error:
        lines = source_text.split("\n")
        end = f"(at line {len(lines)}, column {len(lines[-1]) + 1})"
        message = str(error).replace("(at end of document)", end)
        found = re.fullmatch(r"(.*) \(at (line \d+, column \d+)\)", message, re.DOTALL)
        problem = f"{found[2]}: not valid TOML: {found[1]}" if found else f"not valid TOML: {message}"
        raise ConfigError([problem], source) from error
