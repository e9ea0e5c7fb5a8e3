"""Reads the metrics of all addresses at once, and adds them up as /metrics adds up the workers of one.

Stance on failure: an address that does not answer is named, and the others are shown.
"""

import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from cadenza.observe.worker_metrics import Family, Labels, merge

ANSWER_S = 3.0
BODY_BYTES_MAX = 4 * 1024 * 1024
ADVICE = "set the variable that metrics_token_env in [server] names, as the service has it"
NOT_OURS = "this is not the address of a Cadenza service"


class Scrape(msgspec.Struct, frozen=True):
    """The metrics of all addresses at one time, by name and labels, and what is wrong with some of them."""

    at_s: float
    values: dict[str, dict[Labels, float]]
    answered: int
    problems: list[str]


def scrape(urls: Sequence[str], token: str | None) -> Scrape:
    with ThreadPoolExecutor(2 * len(urls)) as threads:
        ready = [threads.submit(_read_ready, url) for url in urls]
        metrics = [threads.submit(_read_metrics, url, token) for url in urls]
        found = [one.result() for one in metrics]
        not_ready = [one.result() for one in ready]
    problems = [one for one in found if isinstance(one, str)]
    problems += [one for one, own in zip(not_ready, found, strict=True) if one and not isinstance(own, str)]
    families = [one for one in found if not isinstance(one, str)]
    values: dict[str, dict[Labels, float]] = {}
    for family in merge(families):
        for name, labels, value in family.samples:
            values.setdefault(name, {})[labels] = value
    return Scrape(time.time(), values, len(families), problems)


def _read_metrics(url: str, token: str | None) -> list[Family] | str:
    """The metrics of one address, or why there are none."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        status, text = _get(f"{url}/metrics", headers)
        if status in (401, 403):
            return f"{url} does not show its metrics: {ADVICE}."
        families = _parse(text) if status == 200 else []
    except OSError as error:
        return f"{url} does not answer: {_reason(error)}."
    except ValueError:
        families = []
    return families or f"{url} shows no metrics: {NOT_OURS}."


def _read_ready(url: str) -> str:
    """Why a service takes no requests; empty if it does."""
    try:
        status, text = _get(f"{url}/readyz", {})
    except OSError as error:
        return f"{url} does not say whether it is ready: {_reason(error)}."
    return "" if status == 200 else f"{url} is not ready: {text.strip()}."


def _get(url: str, headers: dict[str, str]) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 the command checks the scheme
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:  # noqa: S310
            return reply.status, reply.read(BODY_BYTES_MAX).decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(BODY_BYTES_MAX).decode(errors="replace")


def _parse(text: str) -> list[Family]:
    return [
        Family(
            family.name,
            family.type,
            "",
            [(sample.name, tuple(sorted(sample.labels.items())), sample.value) for sample in family.samples],
        )
        for family in text_string_to_metric_families(text)
        if family.name.startswith(("cadenza_", "process_"))
    ]


def _reason(error: OSError) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"nothing came within {ANSWER_S:g} seconds"
    return str(getattr(cause, "strerror", None) or cause).lower()
