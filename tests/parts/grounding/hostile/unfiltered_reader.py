"""Reads files where the system refuses filters of system calls, as some containers do. What it logs is its output."""

import asyncio
import sys

from cadenza.children.seccomp import this_machine
from cadenza.observe import Observer, make_log
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.reader import DocumentReader, SentFile
from tests.unit.children.unfiltered_probe import refuse_filters


async def main() -> None:
    machine = this_machine()
    assert machine
    assert refuse_filters(machine)
    reader = DocumentReader(Observer(make_log(sys.stdout)))
    for owner in ("a", "a", "b"):
        [file] = await reader.read_files(owner, [SentFile("a.txt", b'"dGV4dA=="')], AskedOfFiles(""), 100)
        assert file.text == "text"
    await reader.stop()


if __name__ == "__main__":
    asyncio.run(main())
