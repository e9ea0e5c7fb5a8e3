"""Run a curl line as pasted; on a machine without curl, send the same request with http.client."""

import http.client
import itertools
import os
import shlex
import shutil
import string
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.cli.program import COMMAND_S, run_other


def curl(line: str, **variables: str) -> str:
    """Return the body of the reply."""
    if shutil.which("curl") is None:
        text = string.Template(line).substitute(os.environ | variables)
        return send(shlex.split(text.replace("\\\n", " ")))
    done = run_other(["bash", "-c", line], Path.cwd(), **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def send(words: Sequence[str]) -> str:
    """Send the request of a curl command line: its address, and the options -H and -d."""
    options = list(itertools.pairwise(words))
    headers = dict(value.split(": ", 1) for word, value in options if word == "-H")
    body = next((value for word, value in options if word in {"-d", "--data"}), None)
    url = urlsplit(next(word for word in words if word.startswith("http://")))
    target = f"{url.path}?{url.query}" if url.query else url.path
    connection = http.client.HTTPConnection(url.netloc, timeout=COMMAND_S)
    try:
        connection.request("POST" if body else "GET", target, body, headers)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
