"""The scripts of the simulated Valkey do what the real ones do."""

import asyncio
from random import Random
from typing import Any

from cadenza.parts.valkey.connection import ValkeyAddress, ValkeyConnection, connected
from cadenza.parts.valkey.link import Script
from tests.simulation.valkey import START_S, ValkeyData
from tests.valkey import running_valkey

CALLS = 600
AS_WRITTEN = {  # what depends on the time of the server, and what stands there instead
    "redis.call('TIME')": "{ ARGV[#ARGV - 1], ARGV[#ARGV] }",
    ", 'PX', string.format('%.0f', math.ceil(reset / 1e6) + 1))": ")",
}
PROCESSES = ("proc_1", "proc_2", "proc_3")


class RealScripts:
    """The scripts on a real server, at times that the test decides."""

    def __init__(self, connection: ValkeyConnection) -> None:
        self._connection = connection

    async def run(self, name: str, keys: list[str], arguments: list[Any], now_us: int) -> list[Any]:
        now_s, rest_us = divmod(now_us, 1_000_000)
        text = Script.read(f"{name}.lua").text.decode()
        for written, instead in AS_WRITTEN.items():
            assert text.count(written) == 1 or name == "slots"
            text = text.replace(written, instead)
        answer = await self._connection.ask("EVAL", text, len(keys), *keys, *arguments, now_s, rest_us)
        assert isinstance(answer, list), answer
        return [one.decode() if isinstance(one, bytes) else one for one in answer]


async def on_a_real_server(compare: Any, seed: int) -> None:
    with running_valkey("--maxmemory-policy", "noeviction") as server:
        server.command("FLUSHALL")
        async with connected(ValkeyAddress.parse(server.url), 30.0, 30.0) as connection:
            await compare(RealScripts(connection), Random(seed))


async def test_the_script_of_rates() -> None:
    """Random calls at random times get the same answers from both."""

    async def compare(real: RealScripts, random: Random) -> None:
        model, now_us = ValkeyData(), START_S * 1_000_000
        for _ in range(CALLS):
            now_us += random.choice((0, 700, 30_000, 300_000, 2_000_000))
            keys, arguments = ["since"], [4_000]
            for key in random.sample(("a", "b", "c"), random.randint(0, 3)):
                step_ns = random.choice((10_000_000, 50_000_000, 333_333_333))
                take = [step_ns, step_ns * random.choice((1, 4, 20)), random.choice((1, 1, 1, -1))]
                keys.append(key)
                arguments += take if random.random() < 0.9 else [random.randrange(10**10), 0, 0]
            expected = await real.run("rates", keys, arguments, now_us)
            assert model.take(keys, arguments, now_us) == expected

    async with asyncio.timeout(60):
        await on_a_real_server(compare, 1)


async def test_the_script_of_slots() -> None:
    """Random reports of three processes, also of some that lost their leases, get the same answers from both."""

    async def compare(real: RealScripts, random: Random) -> None:
        model, now_us = ValkeyData(), START_S * 1_000_000
        for _ in range(CALLS):
            now_us += random.choice((1_000, 4_000, 20_000, 300_000, 300_000, 3_100_000))
            taken = random.choice((0, 1, 3, 9, 20))
            numbers = [taken + random.choice((0, 0, 2)), random.choice((4, 20)), taken, random.choice((0, 0, 2, 15))]
            numbers += [random.choice((0, 1, 5)), random.choice((10, 24)), 3_000]
            name, standing = random.choice(PROCESSES), random.choice(("new", "lapsed", "leased", "leased", "leased"))
            expected = await real.run("slots", ["slots"], [name, standing, *numbers, "channel"], now_us)
            answer, _ = model.lease(name, standing, numbers, now_us // 1000)
            assert answer == expected

    async with asyncio.timeout(60):
        await on_a_real_server(compare, 2)
