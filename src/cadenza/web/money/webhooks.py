"""Events of the payment provider. They come without a session: the signature of the raw body is what counts.

An event that changes nothing is answered with 200 too, because the provider would send it again. Only a store that
fails, or a bug, gives an error: then it comes again.
"""

from starlette.responses import PlainTextResponse, Response

from cadenza.control.money.payments import BadSignature, apply_event
from cadenza.web.errors import Missing, PageError
from cadenza.web.routes import Access, Routes, post
from cadenza.web.visit import Visit


async def stripe_event(visit: Visit) -> Response:
    provider, log = visit.context.payments, visit.context.log
    if provider is None:
        raise Missing
    body = await visit.request.body()
    signature = visit.request.headers.get("stripe-signature", "")
    try:
        event = provider.read_event(body, signature, visit.now_ms // 1000)
    except BadSignature:
        log.warning("a payment event with a bad signature was refused", provider=provider.name)
        raise PageError("The signature of this event is wrong or too old.") from None
    if event is None:
        return PlainTextResponse("ignored\n")
    result = await apply_event(visit.context.store, provider.name, event, visit.now_ms)
    report = log.info if result in ("done", "repeated") else log.warning
    report("payment event", kind=event.kind, id=event.id, result=result)
    return PlainTextResponse(f"{result}\n")


ROUTES: Routes = (post("/platform/webhooks/stripe", stripe_event, Access.ANYONE),)
