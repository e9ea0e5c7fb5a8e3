"""A curl line as a person would paste it; on a machine without curl, the same request by http.client."""

import http.client
import itertools
import os
import shlex
import shutil
import string
from pathlib import Path
from urllib.parse import urlsplit

from tests.cli.program import COMMAND_S, run_program


def curl(line: str, **variables: str) -> str:
    """The body of the reply."""
    if shutil.which("curl") is None:
        return _send(string.Template(line).substitute(os.environ | variables))
    done = run_program(["bash", "-c", line], Path.cwd(), **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _send(line: str) -> str:
    words = shlex.split(line.replace("\\\n", " "))
    after = list(itertools.pairwise(words))
    headers = dict(value.split(": ", 1) for word, value in after if word == "-H")
    body = next((value for word, value in after if word in {"-d", "--data"}), None)
    url = urlsplit(next(word for word in words if word.startswith("http://")))
    connection = http.client.HTTPConnection(url.netloc, timeout=COMMAND_S)
    try:
        connection.request("POST" if body else "GET", url.path, body, headers)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
