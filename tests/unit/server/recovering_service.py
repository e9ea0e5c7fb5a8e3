"""A service whose first process dies, whose next ones cannot start for a while, and whose last one serves."""

import asyncio
import os
import sys
from pathlib import Path

from cadenza.server.server import bind
from cadenza.server.workers import Workers
from tests.unit.server.test_server import RecordedService

MARKS = "CADENZA_TEST_MARKS"  # names a folder in which each process leaves a file
EXIT_CODE = 7
FAILURES = 2


def build() -> RecordedService:
    folder = Path(os.environ[MARKS])
    number = len(list(folder.iterdir()))
    (folder / str(number)).touch()

    async def start() -> bool:
        if number == 0:
            asyncio.get_running_loop().call_soon(os._exit, EXIT_CODE)
        if number > FAILURES:
            sys.stdout.write("serving\n")
            sys.stdout.flush()
        return number == 0 or number > FAILURES

    return RecordedService(start)


if __name__ == "__main__":
    sys.exit(Workers("tests.unit.server.recovering_service:build", 1, bind("127.0.0.1", 0)).run())
