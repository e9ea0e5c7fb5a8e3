"""A process that is paused with its machine: neither its clock nor its timers move meanwhile.

It looks up an API key, holds credit, says `held`, and waits to be told. Then it goes on as if no time had passed: it
finds the key it kept, holds more credit in memory, ends all requests at once, and says what each of them was charged.
"""

from multiprocessing.connection import Connection

from cadenza.core.records import Usage
from cadenza.fleet.key_cache import KeyCache
from cadenza.ledger.rules import Ended, HeldCredit
from cadenza.store.address import open_store
from tests.store.forked import listen
from tests.store.moves import ALONE, PATIENCE_S, QUIET, end_all, hold_all, make_hold, make_outcome, writing

KEY = b"k" * 32
WHOLE = Usage(100, 50)


async def main(line: Connection, url: str, digest: str) -> None:
    store = open_store(url, PATIENCE_S)
    try:
        async with writing(store, timing=ALONE, bounds=QUIET) as (writer, _):
            key_cache = KeyCache(store, writer.presence, PATIENCE_S)
            assert await key_cache.find(bytes.fromhex(digest))
            await hold_all(writer, [make_hold("plain"), make_hold("keyed", key=KEY), make_hold("b1", account="b")])
            line.send("held")
            await listen(line)
            found = await key_cache.find(bytes.fromhex(digest))
            assert writer.presence.is_fresh
            is_live = found is not None and found.revoked_at is None
            assert isinstance(await writer.hold(make_hold("b2", account="b")), HeldCredit)
            names = {"plain": "a", "keyed": "a", "b1": "b", "b2": "b"}
            ended = await end_all(writer, [make_outcome(name, WHOLE, account=of) for name, of in names.items()])
            charged = [one.charged_nano for one in ended if isinstance(one, Ended)]
            lost = [int(one.is_lost) for one in ended if isinstance(one, Ended)]
            line.send(" ".join(map(str, [int(is_live), *charged, *lost])))
            await listen(line)
    finally:
        await store.close()
