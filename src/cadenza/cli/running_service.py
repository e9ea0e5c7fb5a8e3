"""Asks a running service what it measures and what is wrong with it, for `cadenza top` and `cadenza doctor`."""

import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from cadenza.config.settings import ServerSettings
from cadenza.observe.health import RULES
from cadenza.observe.problem import Problem
from cadenza.observe.samples import Samples
from cadenza.observe.worker_metrics import Family, merge

ANSWER_S = 3.0
EVERY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 they are compared with
BODY_BYTES_MAX = 4 * 1024 * 1024
CLOSED = (
    "it does not show its metrics: set the variable that metrics_token_env in [server] names, as the service has it"
)
PROCESS_HEADER = "x-cadenza-process"  # of web/probes.py
PROBLEMS = msgspec.json.Decoder(list[Problem])


class Answer(NamedTuple):
    """The metrics of one address, what is wrong there, and the name of its process, if it says that."""

    families: list[Family]
    problems: list[Problem]
    process: str | None


class Reading(NamedTuple):
    """The metrics of all addresses, their problems, and the names of their processes."""

    at_s: float
    samples: Samples
    answered: int
    problems: list[Problem]
    processes: tuple[str, ...] = ()


class NoAnswer(Exception):
    """An address does not say what a service says. Of a service that refuses to say it, the process is known."""

    def __init__(self, why: str, process: str | None = None) -> None:
        super().__init__(why)
        self.process = process


class NotRunning(NoAnswer):
    """Nothing listens at an address."""


def address_of(server: ServerSettings) -> str:
    """Where a service with this config answers to a program on its machine."""
    host = "127.0.0.1" if server.host in EVERY_ADDRESS else f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}"


def read_all(urls: Sequence[str], token: str | None) -> Reading:
    """An address that does not answer is a problem, and the others are shown."""

    def read(url: str) -> Answer:
        try:
            return read_service(url, token)
        except NoAnswer as reason:
            return Answer([], [RULES["down"].problem(f"{url}: {reason}.")], reason.process)

    with ThreadPoolExecutor(len(urls)) as threads:
        found = list(threads.map(read, urls))
    families = [one.families for one in found if one.families]
    problems = {problem.words: problem for one in found for problem in one.problems}
    processes = tuple(one.process for one in found if one.process)
    return Reading(time.time(), Samples(merge(families)), len(families), list(problems.values()), processes)


def read_service(url: str, token: str | None) -> Answer:
    try:
        (metrics, process), (problems, _) = (_get(f"{url}{path}", token) for path in ("/metrics", "/readyz?verbose"))
        families = [
            Family(
                one.name, one.type, "", [(it.name, tuple(sorted(it.labels.items())), it.value) for it in one.samples]
            )
            for one in text_string_to_metric_families(metrics.decode())
            if one.name.startswith(("cadenza_", "process_"))
        ]
        return Answer(families, PROBLEMS.decode(problems), process)
    except urllib.error.HTTPError as error:
        why = CLOSED if error.code in (401, 403) else f"it answers {error.code}"
        raise NoAnswer(why, error.headers.get(PROCESS_HEADER)) from error
    except OSError as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        late = f"nothing came within {ANSWER_S:g} seconds"
        why = late if isinstance(cause, TimeoutError) else str(getattr(cause, "strerror", None) or cause).lower()
        raise (NotRunning if isinstance(cause, ConnectionRefusedError) else NoAnswer)(why) from error
    except ValueError as error:
        raise NoAnswer("this is not the address of a Cadenza service") from error


def _get(url: str, token: str | None) -> tuple[bytes, str | None]:
    """The body, and the name of the process that answered."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 the command checks the scheme
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:  # noqa: S310
            return bytes(reply.read(BODY_BYTES_MAX)), reply.headers.get(PROCESS_HEADER)
    except urllib.error.HTTPError as error:
        if error.code != 503:  # not ready
            raise
        return error.read(BODY_BYTES_MAX), error.headers.get(PROCESS_HEADER)
