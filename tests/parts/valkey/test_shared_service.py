"""Processes of the real service with one Valkey: one rate, one ceiling, and no end of service without it."""

import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cadenza.core.codes import make_key
from cadenza.gateway.unknown_keys import LOOK_UPS_OF_ONE_ADDRESS
from cadenza.parts.valkey.link import ValkeyTiming
from cadenza.parts.valkey.slots import SLOTS_KEY
from tests.loopback import LoopbackUpstream
from tests.service import Deployment, wait_until
from tests.service_config import classes_spec
from tests.valkey import DOWN, Valkey, run_while_up

AT_ONCE = 8
BURST = 6
LEASE = re.compile(rb"\r\n([0-9a-f]{16})\r\n\$\d+\r\n[\d ]+ (\d+)\r\n")
LEASE_MS = round(ValkeyTiming().lease_s * 1000)


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


def leases(valkey: Valkey) -> dict[bytes, int]:
    """When the lease of each process ends, in milliseconds."""
    return {name: int(until_ms) for name, until_ms in LEASE.findall(valkey.command("HGETALL", SLOTS_KEY))}


def wait_until_each_knows_the_other(valkey: Valkey) -> None:
    """Wait until both processes have renewed their leases while both leases lasted: the answer tells of the other."""
    before = leases(valkey)

    def have_renewed() -> bool:
        nonlocal before
        now = leases(valkey)
        renewed_ms = [now[name] - before.get(name, 0) for name in now]
        if now.keys() != before.keys() or max(renewed_ms) > LEASE_MS:
            before = now
            return False
        return len(now) == 2 and min(renewed_ms) > 0

    wait_until(have_renewed, "two processes that know of each other")


def test_processes_share_one_rate_and_go_on_without_valkey(deployment: Deployment, own_valkey: Valkey) -> None:
    """Exactly the burst of a key is served by two processes; without Valkey both serve, and say that it is gone."""
    processes = deployment.start_many(2)
    served = run_while_up(deployment.processes, lambda: present(deployment, slow_key(deployment), 3 * BURST))
    assert served == {200: BURST, 429: 2 * BURST}
    wait_until_each_knows_the_other(own_valkey)
    own_valkey.kill()
    wait_until(lambda: not any(one.metric("cadenza_shared_state_up") for one in processes), "both noticing it")
    other = slow_key(deployment)
    assert present(deployment, other, 3 * BURST) == {200: BURST, 429: 2 * BURST}  # half of it by each
    own_valkey.start()
    served = run_while_up(deployment.processes, lambda: present(deployment, slow_key(deployment), 3 * BURST))
    assert served == {200: BURST, 429: 2 * BURST}
    for process in processes:
        process.stop()
        assert DOWN in process.output


def test_processes_share_the_limit_of_unknown_keys(deployment: Deployment, own_valkey: Valkey) -> None:
    """Look-ups of unknown keys from one address are limited over both processes together."""
    deployment.start_many(2)
    rate = LOOK_UPS_OF_ONE_ADDRESS

    def try_unknown_keys() -> tuple[Counter[int], float]:
        """The statuses, and how many look-ups are granted at most in this time."""
        own_valkey.command("FLUSHALL")
        own_valkey.settle()  # otherwise each process keeps to its share, and may not know the other one yet
        began_s, ports = time.monotonic(), itertools.cycle(deployment.processes)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            tries = [threads.submit(next(ports).get, "/v1/models", bearer(make_key())) for _ in range(2 * rate.burst)]
            statuses = Counter(one.result()[0] for one in tries)
        return statuses, rate.burst + rate.per_s * (time.monotonic() - began_s)

    statuses, granted_most = run_while_up(deployment.processes, try_unknown_keys)
    assert statuses.keys() <= {401, 429}
    assert rate.burst <= statuses[401] <= granted_most
