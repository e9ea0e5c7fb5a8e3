"""Each mistake of a config has its line, its key, what is allowed and, for an unknown name, the nearest one.

The mistakes are in mistakes.txt: after `before` lines each `+` is a line with a mistake; `|` lines are a whole
file. `&` goes on with a sentence.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.config import ConfigError, load_settings
from tests.unit.config.with_parts import case

FILES = {
    "good.txt": b"Good.",
    "blank.txt": b" \n",
    "null.txt": b"s3cret\0",
    "latin.txt": b"caf\xe9 s3cret",
    "lines.txt": b"s3\ncret",
    "broken.pem": b"-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n",
}


def read_mistakes() -> Iterator[tuple[str, list[str]]]:
    """Each file, and its problems; FOLDER is the folder of the config."""
    for block in (Path(__file__).parent / "mistakes.txt").read_text().split("\n\n"):
        rows = [(line[:1], line.partition(" ")[2]) for line in block.splitlines() if line[:1] != "#"]
        before, after = ([f"{text}\n" for mark, text in rows if mark == wanted] for wanted in "ba")
        if before:
            added = [text for mark, text in rows if mark == "+"]
            sentences = [text for mark, text in rows if mark == "!"]
            for line, sentence in zip(added, sentences, strict=True):
                place = f"line {len(before) + 1}: {key_of(before, line)}"
                problem = place + sentence if sentence.startswith(".") else f"{place}: {sentence}"
                yield "".join([*before, f"{line}\n", *after]), [problem]
        elif rows:
            problems = (
                "\n".join(mark + text for mark, text in rows if mark in "!&")[1:].replace("\n&", "\n").split("\n!")
            )
            yield "\n".join(text for mark, text in rows if mark == "|"), problems


def key_of(before: list[str], line: str) -> str:
    """The key of a line, below the last header before it."""
    header = next(one.strip() for one in reversed(before) if one.startswith("["))
    return f"{header.strip('[]')}{'[0]' if header.startswith('[[') else ''}.{line.partition(' = ')[0]}"


@pytest.mark.parametrize(("text", "expected"), [case(*one) for one in read_mistakes()])
def test_a_file_with_mistakes(tmp_path: Path, text: str, expected: list[str]) -> None:
    """All of them are reported at once, from top to bottom; one causes no other, and no sentence shows a secret."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "cadenza.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {}, tmp_path)
    problems = [problem.replace(str(tmp_path), "FOLDER") for problem in caught.value.problems]
    assert problems == expected
    assert not any(secret in problem for problem in problems for secret in ("s3cret", "s3/cret"))
