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
from cadenza.observe.health import RULES, Problem
from cadenza.observe.samples import Samples
from cadenza.observe.worker_metrics import Family, merge

ANSWER_S = 3.0
EVERY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 they are compared with
BODY_BYTES_MAX = 4 * 1024 * 1024
CLOSED = (
    "it does not show its metrics: set the variable that metrics_token_env in [server] names, as the service has it"
)
PROBLEMS = msgspec.json.Decoder(list[Problem])


class Reading(NamedTuple):
    """The metrics of all addresses, and their problems."""

    at_s: float
    samples: Samples
    answered: int
    problems: list[Problem]


class NoAnswer(Exception):
    """An address does not say what a service says."""


class NotRunning(NoAnswer):
    """Nothing listens at an address."""


def address_of(server: ServerSettings) -> str:
    """Where a service with this config answers to a program on its machine."""
    host = "127.0.0.1" if server.host in EVERY_ADDRESS else f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}"


def read_all(urls: Sequence[str], token: str | None) -> Reading:
    """An address that does not answer is a problem, and the others are shown."""

    def read(url: str) -> tuple[list[Family], list[Problem]]:
        try:
            return read_service(url, token)
        except NoAnswer as reason:
            return [], [RULES["down"].problem(f"{url}: {reason}.")]

    with ThreadPoolExecutor(len(urls)) as threads:
        found = list(threads.map(read, urls))
    families = [one for one, _ in found if one]
    problems = {problem.words: problem for _, own in found for problem in own}
    return Reading(time.time(), Samples(merge(families)), len(families), list(problems.values()))


def read_service(url: str, token: str | None) -> tuple[list[Family], list[Problem]]:
    """The metrics of one address, and what is wrong there."""
    try:
        metrics, problems = (_get(f"{url}{path}", token) for path in ("/metrics", "/readyz?verbose"))
        families = [
            Family(
                one.name, one.type, "", [(it.name, tuple(sorted(it.labels.items())), it.value) for it in one.samples]
            )
            for one in text_string_to_metric_families(metrics.decode())
            if one.name.startswith(("cadenza_", "process_"))
        ]
        return families, PROBLEMS.decode(problems)
    except urllib.error.HTTPError as error:
        raise NoAnswer(CLOSED if error.code in (401, 403) else f"it answers {error.code}") from error
    except OSError as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        late = f"nothing came within {ANSWER_S:g} seconds"
        why = late if isinstance(cause, TimeoutError) else str(getattr(cause, "strerror", None) or cause).lower()
        raise (NotRunning if isinstance(cause, ConnectionRefusedError) else NoAnswer)(why) from error
    except ValueError as error:
        raise NoAnswer("this is not the address of a Cadenza service") from error


def _get(url: str, token: str | None) -> bytes:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 the command checks the scheme
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:  # noqa: S310
            return bytes(reply.read(BODY_BYTES_MAX))
    except urllib.error.HTTPError as error:
        if error.code != 503:  # not ready
            raise
        return error.read(BODY_BYTES_MAX)
