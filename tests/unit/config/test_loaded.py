"""What a config means: the files of loaded.txt, with the variables of their environment (`$`), and what is read.

`>` is an expression over the settings and its value, `!` a mistake that is reported.
"""

import ast
import re
from pathlib import Path

import pytest

from cadenza.config import ConfigError, load_settings
from tests.unit.config.with_parts import case

BLOCKS = (Path(__file__).parent / "loaded.txt").read_text().strip().split("\n\n")
VARIABLE = re.compile(r"(\w+)=('[^']*')")


def rows_of(block: str, mark: str) -> list[str]:
    return [line[2:] for line in block.splitlines() if line.startswith(mark)]


@pytest.mark.parametrize("block", [case(block, id=block.partition("\n")[0][2:]) for block in BLOCKS])
def test_a_config_is_read(tmp_path: Path, block: str) -> None:
    """Its settings, or its mistakes, are as written there, and no text of them shows a secret."""
    found = [pair for row in rows_of(block, "$") for pair in VARIABLE.findall(row)]
    environ = {name: str(ast.literal_eval(value)) for name, value in found}
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "general.md").write_text("Speak like a pianist.\n")
    file, lines, mistakes = folder / "cadenza.toml", rows_of(block, "|"), rows_of(block, "!")
    if lines:
        file.write_text("\n".join(lines))
    given = (str(file) if lines else None, environ, Path("/") if lines else folder)
    if mistakes:
        with pytest.raises(ConfigError) as caught:
            load_settings(*given)
        shown = str(caught.value)
        assert [words for words in mistakes if words not in shown] == []
        assert len(caught.value.problems) == len(mistakes)
    else:
        settings = load_settings(*given)
        shown = repr(settings)
        names = {name: getattr(settings, name) for name in dir(settings) if not name.startswith("_")}
        for row in rows_of(block, ">"):
            expression, _, value = row.rpartition(" = ")
            read = str(eval(expression, names))
            assert read.replace(str(folder), "FOLDER").replace(str(tmp_path), "PARENT") == value, expression
    assert not any(value.strip() and value in shown for value in environ.values())
