"""Keeps the client of the payment provider while the service runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cadenza.parts.payments.settings import PaymentSettings
from cadenza.parts.payments.stripe import Stripe
from cadenza.service import Run, Service


@asynccontextmanager
async def connect(service: Service) -> AsyncIterator[None]:
    given = service.settings.of(PaymentSettings)
    if not given or not given.stripe:
        yield
        return
    stripe = service.made[Stripe] = Stripe(given.stripe)
    try:
        yield
    finally:
        await stripe.close()


run: Run = connect
