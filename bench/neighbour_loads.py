"""The loads of one account, each in a process of its own: `python -m bench.neighbour_loads NAME ACCOUNT_AS_JSON`.

It writes "begun" when it has signed in and made what it sends, and then a line with the status of each reply. What is
refused is tried again after a pause, as a client would do. It leaves the processor to the clients that are measured.
"""

import asyncio
import base64
import http.client
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import uvloop
from tests.visitor import Visitor

from bench.client import Connection
from bench.documents import QUICK as SHORT
from bench.documents import Writer
from bench.gateways.cadenza import CLASS, Cadenza
from bench.workload import PLAIN, TEXT, Shape, Target, chat_body

PASSWORD = "a password of the bench"  # noqa: S105 of accounts that exist for a minute
AT_ONCE = 4
REPLY_S = 300.0
PAUSE_S = 0.1
SPREAD_S = 2.5
NICENESS = 19
STREAM, STREAMS = Shape(chunks=50, gap_ms=50), 200
UNREAD, READERS, READ_BYTES = Shape(chunks=20_000), 50, 1024
BODY_BYTES, PROMPT_BYTES = 30 * 2**20, 3_900_000  # as much text as fits into the context; white space fills the rest
QUESTION = "What is the price of gold today, and who won the election in Canada this week?"
MARKDOWN = "- *a* `b` [c](https://example.org)\n\n```python\nprint(1)\n```\n\n# d\n\n" * 400
DAY_S = 86_400
EXPORTED_DAYS = 5  # some 100,000 requests


class Heavy(msgspec.Struct, frozen=True):
    """The account, and those after it, which it erases."""

    port: int
    key: str
    emails: list[str]
    folder: str

    @property
    def target(self) -> Target:
        return Target(self.port, CLASS, {"authorization": f"Bearer {self.key}"})

    def ask(self, method: str, path: str, body: bytes = b"") -> int:
        """A request with the key, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_S)
        try:
            headers = {**self.target.headers, "content-type": "application/json"}
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def chat(self, content: object) -> Callable[[], int]:
        body = msgspec.json.encode({"model": CLASS, "messages": [{"role": "user", "content": content}]})
        return lambda: self.ask("POST", self.target.path, body)

    def visitor(self) -> Visitor:
        visitor = Visitor(self.port)
        visitor.sign_in(self.emails[0], PASSWORD)
        return visitor


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def repeat(operation: Callable[[], int]) -> None:
    """AT_ONCE at once, until this process is stopped."""

    def work(_number: int) -> None:
        while True:
            status = operation()
            say(status)
            if status >= 400:
                time.sleep(PAUSE_S)

    say("begun")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(work, range(AT_ONCE)))


def repeat_at_once(count: int, operation: Callable[[], Awaitable[None]]) -> None:
    """Their first starts are spread over SPREAD_S, so that they do not run in lockstep."""

    async def work(number: int) -> None:
        await asyncio.sleep(SPREAD_S * number / count)
        while True:
            await operation()

    async def run() -> None:
        asyncio.get_running_loop().call_later(SPREAD_S, say, "begun")
        await asyncio.gather(*map(work, range(count)))

    uvloop.run(run())


def many_streams(heavy: Heavy) -> None:
    request = heavy.target.request(STREAM)

    async def stream() -> None:
        connection = await Connection.open(heavy.port)
        say((await connection.send(request)).status)
        connection.close()

    repeat_at_once(STREAMS, stream)


def slow_readers(heavy: Heavy) -> None:
    """Streams that arrive at once, read at 10 kB a second."""
    request = heavy.target.request(UNREAD)

    async def read() -> None:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)
        small.setblocking(False)
        await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", heavy.port))
        reader, writer = await asyncio.open_connection(sock=small, limit=READ_BYTES)
        writer.write(request)
        say(int((await reader.readuntil(b"\r\n"))[9:12]))
        while await reader.read(READ_BYTES):  # noqa: ASYNC110 slowness is the point
            await asyncio.sleep(PAUSE_S)
        writer.close()

    repeat_at_once(READERS, read)


def large_bodies(heavy: Heavy) -> None:
    body = chat_body(CLASS, PLAIN, TEXT * (PROMPT_BYTES // len(TEXT))).ljust(BODY_BYTES)
    repeat(lambda: heavy.ask("POST", heavy.target.path, body))


def files(heavy: Heavy) -> None:
    data = base64.b64encode(Writer(SHORT).pdf()).decode()
    file = {"filename": "report.pdf", "file_data": f"data:application/pdf;base64,{data}"}
    repeat(heavy.chat([{"type": "file", "file": file}, {"type": "text", "text": "Sum it up."}]))


def failing_searches(heavy: Heavy) -> None:
    repeat(heavy.chat(QUESTION))


def usage_reports(heavy: Heavy) -> None:
    now_s = int(time.time())
    span = f"start={now_s - 366 * DAY_S}&end={now_s}"
    repeat(lambda: heavy.ask("GET", f"/v1/usage?{span}&group_by=key"))


def activity_pages(heavy: Heavy) -> None:
    visitor, pages = heavy.visitor(), itertools.cycle(("", "&status=failed", "&model=forte"))
    repeat(lambda: visitor.get(f"/usage/activity?{_days(366)}{next(pages)}").status)


def exports(heavy: Heavy) -> None:
    visitor = heavy.visitor()
    ways: list[Callable[[], int]] = [
        lambda: visitor.get(f"/usage/activity.csv?{_days(EXPORTED_DAYS)}").status,
        lambda: visitor.get(f"/credit/statement.csv?{_days(EXPORTED_DAYS)}").status,
        lambda: visitor.post("/settings/security/export").status,
    ]
    turns = itertools.cycle(ways)
    repeat(lambda: next(turns)())  # noqa: PLW0108 the next one each time


def renders(heavy: Heavy) -> None:
    visitor = heavy.visitor()
    repeat(lambda: visitor.api("POST", "/render", {"texts": [MARKDOWN]}).status)


def erasure(heavy: Heavy) -> None:
    """By the command line, first the account with the long ledger."""
    program, config = str(Cadenza().program), f"{heavy.folder}/cadenza.toml"
    say("begun")
    for email in heavy.emails:
        command = [program, "account", "erase", email, "--yes", "--config", config]
        done = subprocess.run(command, capture_output=True, text=True, timeout=REPLY_S, check=False)
        say(200 if done.returncode == 0 else 500)


def _days(count: int) -> str:
    """The first days of the ledger, which begins a year ago."""
    first_s = time.time() - 366 * DAY_S
    first, last = (time.strftime("%Y-%m-%d", time.gmtime(at_s)) for at_s in (first_s, first_s + count * DAY_S))
    return f"from={first}&to={last}"


LOADS: dict[str, Callable[[Heavy], None]] = {
    "many streams": many_streams,
    "slow readers": slow_readers,
    "bodies of 30 MiB": large_bodies,
    "PDFs that are read": files,
    "searches that fail": failing_searches,
    "usage reports": usage_reports,
    "activity pages": activity_pages,
    "exports": exports,
    "renders of Markdown": renders,
    "erasure": erasure,  # the last, because the account is gone then
}

if __name__ == "__main__":
    os.nice(NICENESS)
    LOADS[sys.argv[1]](msgspec.json.decode(sys.argv[2], type=Heavy))
