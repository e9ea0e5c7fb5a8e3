"""An upstream whose requests are not of clients: each is counted, with its tokens, because its provider bills it."""

from cadenza.core.attempts import AttemptCounts
from cadenza.core.records import Route, Usage
from cadenza.upstreams.base import Ask, OpenReply, Piece, Probe, Sink, Upstream


class BilledUpstream:
    """Counts the requests to another upstream as attempts of one kind."""

    def __init__(self, upstream: Upstream, attempts: AttemptCounts, kind: str) -> None:
        self._attempts = attempts
        self._kind = kind
        self._upstream = upstream
        self.start, self.stop = upstream.start, upstream.stop

    async def probe(self) -> Probe:
        return await self._upstream.probe()

    async def open(self, route: Route, ask: Ask) -> OpenReply:
        """A request that fails is counted too, without tokens."""
        try:
            reply = await self._upstream.open(route, ask)
        except BaseException:
            self.count(route, None)
            raise
        return BilledReply(self, route, reply)

    def count(self, route: Route, usage: Usage | None) -> None:
        tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else ()
        self._attempts.add(route, self._kind, *tokens)


class BilledReply:
    """A reply that is counted when it is closed. As a sink it passes everything on, and sees the counts that pass."""

    def __init__(self, upstream: BilledUpstream, route: Route, reply: OpenReply) -> None:
        self._upstream = upstream
        self._route = route
        self._reply = reply
        self._is_counted = False
        self._usage: Usage | None = None  # the last count that came

    async def deliver(self, sink: Sink) -> None:
        self.take_texts, self.flush, self.drain = sink.take_texts, sink.flush, sink.drain
        self._take = sink.take
        await self._reply.deliver(self)

    async def close(self) -> None:
        if not self._is_counted:
            self._is_counted = True
            self._upstream.count(self._route, self._usage)
        await self._reply.close()

    def take(self, piece: Piece) -> None:
        if piece.usage:
            self._usage = piece.usage
        self._take(piece)
