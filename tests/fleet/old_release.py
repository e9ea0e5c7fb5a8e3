"""A process of the release before, which holds credit by request: its SQL, replayed beside gateways of this release.

It keeps an advisory lock of its name while it lives, takes and settles holds, and sweeps those of dead processes.
"""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator
from typing import Any, Self

from cadenza.core.codes import digest_key
from tests.fleet.ledger import FleetLedger
from tests.service import now_ms

GRACE_S = 2.0
TAKE = """
    UPDATE accounts SET held_nano = held_nano + $2 WHERE id = $1 AND balance_nano - held_nano >= $2
    RETURNING balance_nano - held_nano"""
ADD_HOLD = """
    INSERT INTO holds (completion_id, account_id, key_id, class_id, owner, state, amount_nano, prompt_tokens,
    delivered_tokens, input_nano, output_nano, stream, started_at, request_id)
    VALUES ($1, $2, $3, 'forte', $4, 'open', $5, 1, 0, 1070, 3450, false, $6, $1)"""
END = """
    UPDATE holds SET state = $2, ended_at = $3 WHERE completion_id = $1 AND state = 'open'
    RETURNING account_id, amount_nano, key_id, started_at"""
PAY = """
    UPDATE accounts SET held_nano = held_nano - $2, balance_nano = balance_nano - $3
    WHERE id = $1 AND balance_nano - $3 >= held_nano - $2"""
ADD_ENTRY = """
    INSERT INTO entries (account_id, kind, amount_nano, completion_id, note, created_at)
    VALUES ($1, 'charge', $2, $3, '', $4)"""
ADD_USAGE = """
    INSERT INTO usage (completion_id, account_id, key_id, class_id, provider, model, prompt_tokens, cached_tokens,
    completion_tokens, cost_nano, estimated, status, stream, started_at, first_byte_ms, duration_ms, request_id)
    VALUES ($1, $2, $3, 'forte', 'loopback', 'loopback-forte', 0, 0, 0, $4, false, 200, false, $5, 1, 1, $1)"""
OPEN_OWNERS = "SELECT DISTINCT owner FROM holds WHERE state = 'open'"
OPEN_OF = "SELECT completion_id FROM holds WHERE state = 'open' AND owner = $1 ORDER BY account_id"
FIND = "SELECT a.id, k.id FROM accounts a, keys k WHERE a.email = $1 AND k.digest = $2"


class OldRelease:
    """One process with one account and key. Its two connections are its lock and its pool."""

    def __init__(self, lock: Any, work: Any, account_id: str, key_id: str) -> None:
        self.name = "proc_" + secrets.token_urlsafe(12)
        self._lock = lock
        self._work = work
        self._account_id = account_id
        self._key_id = key_id

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, ledger: FleetLedger, email: str, key: str) -> AsyncIterator[Self]:
        async with ledger.session() as lock, ledger.session() as work:
            account_id, key_id = await work.fetchrow(FIND, email, digest_key(key.encode()))
            process = cls(lock, work, account_id, key_id)
            assert await process.try_lock(process.name)
            yield process

    async def try_lock(self, name: str) -> bool:
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        return bool(await self._lock.fetchval("SELECT pg_try_advisory_lock($1)", number))

    async def take_hold(self, amount_nano: int) -> str | None:
        """The completion id, or None where the credit does not pay for it."""
        completion_id = "chatcmpl-old-" + secrets.token_urlsafe(12)
        async with self._work.transaction():
            if await self._work.fetchrow(TAKE, self._account_id, amount_nano) is None:
                return None
            values = (completion_id, self._account_id, self._key_id, self.name, amount_nano, now_ms())
            await self._work.execute(ADD_HOLD, *values)
        return completion_id

    async def settle(self, completion_id: str, charge_nano: int) -> bool:
        """False where the hold had ended before."""
        async with self._work.transaction():
            ended = await self._work.fetchrow(END, completion_id, "settled", now_ms())
            if ended is None:
                return False
            account_id, amount_nano, key_id, started_at = ended
            assert await self._work.execute(PAY, account_id, amount_nano, charge_nano) == "UPDATE 1"
            await self._work.execute(ADD_ENTRY, account_id, -charge_nano, completion_id, now_ms())
            await self._work.execute(ADD_USAGE, completion_id, account_id, key_id, charge_nano, started_at)
        return True

    async def serve(self, asked: int, amount_nano: int) -> int:
        """Serve requests until the credit is used up or all are served; how many were."""
        served = 0
        for _ in range(asked):
            held = await self.take_hold(amount_nano)
            await asyncio.sleep(0)
            if held and await self.settle(held, amount_nano):
                served += 1
        return served

    async def sweep(self) -> int:
        """End the holds of other processes that are dead; how many there were."""
        owners = [row[0] for row in await self._work.fetch(OPEN_OWNERS) if row[0] != self.name]
        await asyncio.sleep(GRACE_S)
        ended = 0
        for owner in owners:
            if await self.try_lock(owner):
                for (completion_id,) in await self._work.fetch(OPEN_OF, owner):
                    ended += await self.settle(completion_id, 0)
        return ended
