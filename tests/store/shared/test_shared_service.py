"""Processes of the real service with one Valkey: one rate, one ceiling, and no end of service without it."""

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cadenza.core.apikey import make_key
from cadenza.gateway.unknown_keys import LOOK_UPS_OF_ONE_ADDRESS
from tests.loopback import LoopbackUpstream
from tests.service import Deployment, wait_until
from tests.service_config import classes_spec
from tests.valkey import Valkey

AT_ONCE = 8
BURST = 6
DOWN = "the shared state does not answer"


@pytest.fixture
def deployment(own_valkey: Valkey) -> Iterator[Deployment]:
    with LoopbackUpstream() as upstream:
        spec = classes_spec(upstream.base_url)
        shared = f'[shared_state]\nurl = "{own_valkey.url}"\n'
        with Deployment(type(spec)(spec.providers, spec.routes, spec.more_toml + shared)) as deployment:
            yield deployment


def slow_key(deployment: Deployment) -> str:
    return deployment.create_key(requests_per_second=0.001, burst=BURST)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def present(deployment: Deployment, key: str, count: int) -> Counter[int]:
    """The statuses of requests with this key, to all processes in turn."""
    serving = deployment.processes
    return Counter(serving[n % len(serving)].get("/v1/models", bearer(key))[0] for n in range(count))


def present_while_up(deployment: Deployment) -> Counter[int]:
    """The statuses of requests with a slow key, in a run in which no process found Valkey late on a busy machine."""
    while True:
        downs = [process.output.count(DOWN) for process in deployment.processes]
        statuses = present(deployment, slow_key(deployment), 3 * BURST)
        is_up = all(process.metric("cadenza_shared_state_up") for process in deployment.processes)
        if is_up and downs == [process.output.count(DOWN) for process in deployment.processes]:
            return statuses


def test_processes_share_one_rate_and_go_on_without_valkey(deployment: Deployment, own_valkey: Valkey) -> None:
    """Exactly the burst of a key is served by two processes; without Valkey both serve, and say that it is gone."""
    processes = deployment.start_many(2)
    assert present_while_up(deployment) == {200: BURST, 429: 2 * BURST}
    assert [process.metric("cadenza_shared_state_up") for process in processes] == [1, 1]
    own_valkey.kill()
    wait_until(lambda: not any(one.metric("cadenza_shared_state_up") for one in processes), "both noticing it")
    other = slow_key(deployment)
    assert present(deployment, other, 3 * BURST) == {200: BURST, 429: 2 * BURST}  # half of it by each
    own_valkey.start()
    wait_until(lambda: all(one.metric("cadenza_shared_state_up") for one in processes), "both coming back")
    assert present_while_up(deployment) == {200: BURST, 429: 2 * BURST}
    for process in processes:
        process.stop()
        assert DOWN in process.output


def test_processes_share_the_limit_of_unknown_keys(deployment: Deployment) -> None:
    """Look-ups of unknown keys from one address are limited over both processes together."""
    deployment.start_many(2)
    rate, began_s = LOOK_UPS_OF_ONE_ADDRESS, time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        ports = itertools.cycle(deployment.processes)
        tries = [threads.submit(next(ports).get, "/v1/models", bearer(make_key())) for _ in range(2 * rate.burst)]
        statuses = Counter(one.result()[0] for one in tries)
    granted_most = rate.burst + rate.per_s * (time.monotonic() - began_s)
    assert statuses.keys() <= {401, 429}
    assert rate.burst <= statuses[401] <= granted_most
