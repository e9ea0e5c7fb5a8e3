"""14. Files and pages are read by a child that can do nothing else, and that may die: the service does not mind."""

import asyncio
import base64
import email
import email.policy
import io
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from pathlib import Path

import pytest

from cadenza.children.confine import ChildLimits
from cadenza.children.seccomp import this_machine
from cadenza.children.turns import TurnLimits
from cadenza.core.errors import UnreadableAttachment
from cadenza.observe import Observer, make_log
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.reader import (
    CHILD,
    MIB,
    DocumentReader,
    ReaderBusy,
    ReaderLimits,
    SentFile,
)
from cadenza.parts.grounding.files.records import FetchedPage
from cadenza.parts.grounding.files.shown import DocumentText
from tests import made_files as made
from tests import processes
from tests.processes import read_of

WAIT_S = 200.0  # of a busy machine
TURNS = TurnLimits(waiting_max=256, waiting_per_owner_max=32, wait_s=WAIT_S)
LIMITS = ReaderLimits(task_s=WAIT_S, turns=TURNS)
QUICK = ReaderLimits(ChildLimits(cpu_s=0, memory_bytes=768 * MIB), task_s=WAIT_S, turns=TURNS)
SECRET = "zanzibar"
HEAVY_TEXT = "漢" * (4 << 20)  # to rank it by this character takes more than a second of CPU time

pytestmark = [
    pytest.mark.slow(reason="starts a child process for each test"),
    pytest.mark.skipif(this_machine() is None, reason="reads /proc, and needs the filter"),
]


def sent(name: str, data: bytes | str) -> SentFile:
    raw = data.encode() if isinstance(data, str) else data
    return SentFile(name, b'"data:text/plain;base64,' + base64.b64encode(raw) + b'"')


class Reading:
    """A reader, and what it logged."""

    def __init__(self, limits: ReaderLimits, module: str) -> None:
        self.output = io.StringIO()
        self.reader = DocumentReader(Observer(make_log(self.output)), limits, module)

    @property
    def warnings(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.output.getvalue().splitlines()]

    async def read(
        self, *files: SentFile, owner: str = "owner", question: str = "", tokens: int = 1000
    ) -> list[DocumentText]:
        return await self.reader.read_files(owner, files, AskedOfFiles(question), tokens)


@asynccontextmanager
async def reading(limits: ReaderLimits = LIMITS, module: str = CHILD) -> AsyncIterator[Reading]:
    made = Reading(limits, module)
    try:
        yield made
    finally:
        await made.reader.stop()
        assert children() == set()


@pytest.fixture
async def documents() -> AsyncIterator[Reading]:
    async with reading() as made:
        yield made


def children() -> set[int]:
    """The processes that read documents, zombies included."""
    return {pid for pid in processes.children(os.getpid()) if reads_documents(pid)}


def reads_documents(pid: int) -> bool:
    return CHILD.encode() in read_of(pid, "cmdline") or b"State:\tZ" in read_of(pid, "status")


def open_files(pid: int) -> list[str]:
    return sorted(str(path.readlink()).partition(":")[0] for path in Path(f"/proc/{pid}/fd").iterdir())


async def the_child() -> int:
    """The process that reads, once it runs."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if found := children():
                [pid] = found
                return pid
            await asyncio.sleep(0.01)


async def test_the_real_child_is_confined(documents: Reading) -> None:
    """It has its filter, can open and write nothing, and was given the path of its modules and one socket."""
    await documents.read(sent("a.txt", "text"))
    pid = await the_child()
    status = dict(line.split(":\t", 1) for line in read_of(pid, "status").decode().splitlines() if ":\t" in line)
    assert status["Seccomp"] == "2"
    assert status["NoNewPrivs"] == "1"
    limits = {line[:26].strip(): line[26:].split()[:2] for line in read_of(pid, "limits").decode().splitlines()}
    assert limits["Max open files"] == ["0", "0"]
    assert limits["Max file size"] == ["0", "0"]
    assert limits["Max core file size"] == ["0", "0"]
    assert limits["Max address space"] == [str(LIMITS.child.memory_bytes)] * 2
    if os.geteuid() == 0:
        assert [line.partition(b"=")[0] for line in read_of(pid, "environ").split(b"\0") if line] == [b"PYTHONPATH"]
        assert open_files(pid) == ["/dev/null", "/dev/null", "socket"]


async def test_files_are_read_in_their_order(documents: Reading) -> None:
    """Each with its name, without its path, and what is shown of it."""
    files = [sent("../../etc/a.txt", "first"), sent("b\n.md", "second\n"), SentFile("c", b'"dGhpcmQ"')]
    read_files = await documents.read(*files)
    assert [(file.name, file.text, file.is_cut, file.shown) for file in read_files] == [
        ("a.txt", "first", False, "all of it"),
        ("b.md", "second", False, "all of it"),
        ("c", "third", False, "all of it"),
    ]
    assert await documents.read() == []


async def test_every_format_is_read_in_the_real_child(documents: Reading) -> None:
    """No reader opens or imports anything while it reads, not even for an e-mail with another one attached."""
    forwarded = EmailMessage()
    forwarded["From"] = "a@example.org"
    forwarded.set_content("See the letter.")
    forwarded.add_attachment(email.message_from_bytes(made.make_eml({"b.txt": b"innermost"}), policy=email.policy.SMTP))
    files = {
        "a.pdf": made.make_pdf(["text"]),
        "a.docx": made.make_docx(),
        "a.xlsx": made.make_xlsx(),
        "a.pptx": made.make_pptx(),
        "a.html": b"<html><body><p>text</p></body></html>",
        "a.eml": bytes(forwarded),
        "b.eml": b"From: a\nContent-Type: multipart/digest; boundary=x\n\n--x\n\nFrom: b\n\nfirst letter\n--x--\n",
    }
    read_files = await documents.read(*(sent(name, data) for name, data in files.items()), tokens=20_000)
    texts = {file.name: file.text for file in read_files}
    assert texts.keys() == files.keys()
    assert "innermost" in texts["a.eml"]
    assert "first letter" in texts["b.eml"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sent("bad.txt", ""), "it is empty"),
        (sent("bad.txt", " \n "), "it has no text"),
        (SentFile("x/bad.txt", b'"%%%"'), "its file_data is neither a data URL nor base64"),
    ],
)
async def test_a_file_that_cannot_be_read_is_named(documents: Reading, bad: SentFile, reason: str) -> None:
    """The error has its name and the reason; neither is in the log."""
    with pytest.raises(UnreadableAttachment) as caught:
        await documents.read(sent("good.txt", "text"), bad, sent("other.txt", "text"))
    assert (caught.value.name, caught.value.reason) == ("bad.txt", reason)
    assert documents.output.getvalue() == ""


async def test_a_file_that_takes_too_much_time_is_named() -> None:
    """Of three files, it is the one that is refused; the child that it ended is gone, and the next file is read."""
    async with reading(QUICK) as documents:
        heavy = sent(f"{SECRET}.txt", HEAVY_TEXT)
        with pytest.raises(UnreadableAttachment) as caught:
            await documents.read(sent("a.txt", "漢"), heavy, sent("c.txt", "漢"), question="漢")
        assert caught.value.name == f"{SECRET}.txt"
        assert caught.value.reason.startswith("it takes too much time or memory to read; send a smaller part")
        assert children() == set()
        assert SECRET not in documents.output.getvalue()
        assert '"signal":"SIGXCPU"' in documents.output.getvalue()
        assert len(await documents.read(sent("a.txt", "漢"))) == 1


async def test_a_file_that_takes_too_much_memory_is_named() -> None:
    """It is refused, and the child goes on."""
    wasteful = SentFile("wasteful.txt", b'"data:,' + b"%41" * (8 * MIB) + b'"')  # each needs 50 bytes
    async with reading(
        ReaderLimits(ChildLimits(cpu_s=60, memory_bytes=384 * MIB), task_s=WAIT_S, turns=TURNS)
    ) as documents:
        await documents.read(sent("a.txt", "text"))
        pid = await the_child()
        with pytest.raises(UnreadableAttachment) as caught:
            await documents.read(wasteful)
        assert (caught.value.name, caught.value.reason) == ("wasteful.txt", "it takes too much memory to read")
        assert len(await documents.read(sent("a.txt", "text"))) == 1
        assert await the_child() == pid


async def test_a_child_that_is_killed_is_our_failure(documents: Reading) -> None:
    """The request is told to try again, the log says so without content, there is no zombie, and the next is read."""
    await documents.read(sent("a.txt", "text"))
    pid = await the_child()
    os.kill(pid, signal.SIGSTOP)
    task = asyncio.create_task(documents.read(sent(f"{SECRET}.txt", SECRET)))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ReaderBusy):
        await task
    assert children() == set()
    assert "a process that reads documents failed" in documents.output.getvalue()
    assert SECRET not in documents.output.getvalue()
    assert len(await documents.read(sent("a.txt", "text"))) == 1


async def test_a_child_that_hangs_is_our_failure() -> None:
    """Beyond its time by the clock it is killed, and the request is told to try again."""
    async with reading(ReaderLimits(task_s=0.001, turns=TURNS)) as documents:
        with pytest.raises(ReaderBusy):
            await documents.read(sent("a.txt", "text"))
        assert children() == set()


async def test_a_request_that_gives_up_ends_the_child(documents: Reading) -> None:
    """Whenever the caller cancels, nothing is left of the child."""
    for delay_s in (0.0, 0.01, 0.3):
        task = asyncio.create_task(documents.read(sent("a.txt", HEAVY_TEXT), question="漢"))
        await asyncio.sleep(delay_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert children() == set()


async def test_many_files_of_one_owner_do_not_starve_another(documents: Reading) -> None:
    """Of 50 requests at once, those beyond the bound are refused, and another owner is next in turn."""
    done = list[str]()

    async def read_one(owner: str) -> None:
        try:
            await documents.read(sent("a.txt", "text"), owner=owner)
            done.append(owner)
        except ReaderBusy:
            done.append("refused")

    greedy = [asyncio.create_task(read_one("greedy")) for _ in range(50)]
    await asyncio.sleep(0)
    await read_one("other")
    assert done.index("other") - done.count("refused") <= 2
    await asyncio.gather(*greedy)
    assert done.count("refused") == 50 - 33  # one runs, and 32 wait
    assert done.count("greedy") == 33


async def test_owners_do_not_share_a_child(documents: Reading) -> None:
    """A file that takes over its child sees nothing of another owner's."""
    await documents.read(sent("a.txt", "text"), owner="a")
    first = await the_child()
    await documents.read(sent("a.txt", "text"), owner="a")
    assert await the_child() == first
    await documents.read(sent("a.txt", "text"), owner="b")
    assert await the_child() != first


async def test_a_hung_file_does_not_hold_up_pages(documents: Reading) -> None:
    """Pages have a child of their own."""
    await documents.read(sent("a.txt", "text"))
    os.kill(await the_child(), signal.SIGSTOP)
    hung = asyncio.create_task(documents.read(sent("a.txt", "text")))
    await asyncio.sleep(0)
    sent_page = FetchedPage("https://a.example/", "text/plain", b"text")
    [page] = await documents.reader.read_pages("owner", [sent_page], "", 99)
    assert page
    assert page.text == "text"
    assert not hung.done()
    hung.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hung


async def test_a_bad_page_is_left_out() -> None:
    """Unreadable, or too heavy for the time that a page has, it is None; the others are read and share the tokens."""
    pages = [
        FetchedPage("https://a.example/", "text/plain", b"first"),
        FetchedPage("https://b.example/", "text/plain", b"\xff\xfe\x00\xd8\x81"),
        FetchedPage("https://c.example/", "text/plain", HEAVY_TEXT.encode()),
        FetchedPage("https://d.example/", "text/plain", "漢 last".encode()),
    ]
    async with reading(ReaderLimits(page_cpu_s=0, task_s=WAIT_S, turns=TURNS)) as documents:
        first, _, heavy, last = await documents.reader.read_pages("owner", pages, "漢", 500)
    assert first
    assert last
    assert (first.text, first.is_cut) == ("first", False)
    assert last.text == "漢 last"
    assert heavy is None


async def test_a_large_file_is_not_copied(documents: Reading) -> None:
    """Reading a view of 30 MiB takes a few slices of memory in the service, not its size."""
    line = "𠀀" * 30 + " sea "  # 125 bytes, and few characters
    file = sent("large.txt", line * (22 * MIB // 125))
    assert len(file.data) > 29 * MIB
    await documents.read(sent("a.txt", "text"))
    tracemalloc.start()
    try:
        [read_file] = await documents.read(SentFile(file.name, memoryview(file.data)), question="sea", tokens=2000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read_file.is_cut
    assert peak_bytes < 4 * MIB


def test_a_missing_filter_is_logged_once() -> None:
    """Where the system refuses the filter, files are still read, under the other limits, and one warning says so."""
    command = [sys.executable, "-m", "tests.parts.grounding.hostile.unfiltered_reader"]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, env={"PYTHONPATH": path}, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().count("does not filter system calls") == 1
