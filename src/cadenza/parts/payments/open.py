"""The payments that the provider lists, for `cadenza report month --verify`."""

from cadenza.config import Settings
from cadenza.core.spans import Span
from cadenza.ledger.payments import ProviderPayment
from cadenza.parts.payments.settings import PaymentSettings
from cadenza.parts.payments.stripe import ProviderFailed, Stripe
from cadenza.terminal.configured import ListPayments


async def list_stripe_payments(settings: Settings, span: Span) -> list[ProviderPayment]:
    """ValueError if no provider is configured, or it does not answer."""
    given = settings.of(PaymentSettings)
    if given is None or given.stripe is None:
        raise ValueError("--verify needs [payments.stripe] in the config: there is no provider to ask.")
    settings.require_secrets()
    provider = Stripe(given.stripe)
    try:
        return await provider.list_payments(span)
    except ProviderFailed as error:
        raise ValueError(f"The payment provider did not list its payments ({error}). Try again later.") from None
    finally:
        await provider.close()


list_payments: ListPayments = list_stripe_payments
