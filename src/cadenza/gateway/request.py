"""What an endpoint of the API is handed."""

import msgspec

from cadenza.core.records import Principal
from cadenza.gateway.answers import Answers
from cadenza.gateway.record import RequestRecord
from cadenza.http.exchange import Exchange


class ApiRequest(msgspec.Struct, frozen=True):
    """A request whose key is live, has the scope and is within its rate."""

    exchange: Exchange
    principal: Principal
    answers: Answers
    record: RequestRecord
