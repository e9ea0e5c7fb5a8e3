"""A service whose first process dies, and whose second one cannot start; and a program that runs it in workers."""

import os
import sys
from pathlib import Path

from cadenza.server.server import STARTUP_FAILURE, bind
from cadenza.server.workers import Workers

MARK = "CADENZA_TEST_MARK"  # names a file that the first process leaves behind
EXIT_CODE = 7


def build() -> None:
    mark = Path(os.environ[MARK])
    if mark.exists():
        sys.exit(STARTUP_FAILURE)
    mark.touch()
    os._exit(EXIT_CODE)


if __name__ == "__main__":
    sys.exit(Workers("tests.unit.server.failing_service:build", 1, bind("127.0.0.1", 0)).run())
