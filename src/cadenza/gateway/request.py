"""What an endpoint of the API is handed."""

from collections.abc import Callable

import msgspec

from cadenza.core.records import Principal
from cadenza.gateway.answers import Answers
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.record import RequestRecord
from cadenza.gateway.relay import ReplyHead, StreamRelay
from cadenza.http.exchange import Exchange

MakeStreamRelay = Callable[[Exchange, Answers, ReplyHead, UsageMeter], StreamRelay]


class ApiRequest(msgspec.Struct, frozen=True):
    """A request whose key is live, has the scope and is within its rate, and what sends its reply if it is a stream."""

    exchange: Exchange
    principal: Principal
    answers: Answers
    record: RequestRecord
    make_stream_relay: MakeStreamRelay = StreamRelay
