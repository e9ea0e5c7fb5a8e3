"""Files that a person imports into the chat: they may come from anybody, and the page must not stand still over one."""

import base64
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.debian import find_or_install

SCRIPT = Path(__file__).with_name("chat_pages.mjs")
MESSAGES_MAX = 20_000
CPU_US_MAX = 1_000_000


class Imported(NamedTuple):
    """What importing a file took, and what was said: how many conversations it had, or what is wrong with it."""

    us: int
    said: int | str


class Pages:
    """The scripts of the chat, in a process of Node."""

    def __init__(self) -> None:
        node = find_or_install("node", "nodejs")
        self._process = subprocess.Popen([node, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.used_us = 0

    def stop(self) -> None:
        self._process.communicate()

    def take(self, file: bytes) -> Imported:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(base64.b64encode(file) + b"\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            sys.exit("Node has ended.")
        took = Imported(**json.loads(line))
        self.used_us += took.us
        return took


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    running = Pages()
    yield running
    running.stop()


def export_of(*conversations: dict[str, object]) -> bytes:
    return json.dumps({"format": "cadenza-chat", "version": 1, "conversations": conversations}).encode()


def chain(count: int, **first: str) -> dict[str, object]:
    """A conversation in which each message follows the one before."""
    message = {"role": "user", "text": "x"}
    messages = {f"m{number}": {**message, "parent": f"m{number - 1}"} for number in range(count)}
    messages["m0"] |= first
    return {"title": "a", "messages": messages, "head": f"m{count - 1}"}


def archive_of(name: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, "text")
    return made.getvalue()


def test_the_longest_chain_is_quick(pages: Pages) -> None:
    """A chain of the most messages that can be imported takes less than a second of CPU time, with its export."""
    took = pages.take(export_of(chain(MESSAGES_MAX)))
    assert took.said == 1
    assert took.us < CPU_US_MAX


NO_EXPORT = "not an export of this chat. Choose the .zip file"
REFUSED = {
    "a PDF": (b"%PDF-1.7\n\xff\xfe" + b"0" * 30_000_000, NO_EXPORT),
    "JSON of others": (b'{"a": 1}', NO_EXPORT),
    "an archive of others": (archive_of("a.txt"), NO_EXPORT),
    "nothing": (b"", NO_EXPORT),
    "cut": (export_of(chain(2))[:-9], "is damaged: it ends early, or was changed"),
    "a circle": (export_of(chain(5, parent="m4")), "in a circle"),
    "itself": (export_of(chain(1, parent="m0")), "in a circle"),
    "text as messages": (export_of({"messages": "x" * 10_000_000}), "has no messages"),
    "too many messages": (export_of(chain(MESSAGES_MAX + 1)), "at most 20,000"),
    "too many conversations": (export_of(*[chain(1)] * (MESSAGES_MAX + 1)), "at most 20,000"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_imported_is_named(pages: Pages, case: str) -> None:
    """A file that is no export, or a damaged or malicious one, is refused with what is wrong and what to choose."""
    file, said = REFUSED[case]
    took = pages.take(file)
    assert said in str(took.said)
    assert took.us < CPU_US_MAX
