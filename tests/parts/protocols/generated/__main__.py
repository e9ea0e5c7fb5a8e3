"""`python -m tests.parts.protocols.generated`: check many generated replies, or one seed again."""

import argparse
import asyncio
import sys
import time

from tests.parts.protocols.generated.checks import check_seed

SAY_EVERY = 5_000


async def check_seeds(first: int, seeds: int) -> list[int]:
    """The seeds whose replies differ by protocol."""
    failed, events, began_s = list[int](), 0, time.process_time()
    for number in range(1, seeds + 1):
        try:
            events += await check_seed(first + number - 1)
        except Exception as error:  # noqa: BLE001 what an SDK raises is a finding, and the others are checked too
            failed.append(first + number - 1)
            sys.stdout.write(f"seed {failed[-1]}: {type(error).__name__}: {error}\n")
        if number % SAY_EVERY == 0 or number == seeds:
            cpu_s = time.process_time() - began_s
            sys.stdout.write(f"{number} replies, {events} events, {len(failed)} failed, {cpu_s:.0f} s of CPU time\n")
            sys.stdout.flush()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parts.protocols.generated", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=100_000, help="how many seeds (default: %(default)s)")
    options = parser.parse_args()
    if options.seeds == 1:
        asyncio.run(check_seed(options.first))  # with its traceback
        return 0
    return 1 if asyncio.run(check_seeds(options.first, options.seeds)) else 0


if __name__ == "__main__":
    sys.exit(main())
