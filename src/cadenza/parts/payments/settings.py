"""`[payments]` in the config."""

from typing import Annotated, Literal

from cadenza.config.checks import ADDRESS, Secret
from cadenza.config.reader import PartTable
from cadenza.core.config_keys import ConfigTable, Variable


# A key is one line.
# fmt: off
class StripeSettings(ConfigTable, frozen=True):
    secret_key_env: Annotated[str, Variable("the secret key of Stripe", "STRIPE_SECRET_KEY")]
    webhook_secret_env: Annotated[str, Variable("the secret of the webhook", "STRIPE_WEBHOOK_SECRET")]
    api_url: Annotated[str, ADDRESS, "only for tests"] = "https://api.stripe.com"
    invoices: Annotated[bool, "true: Stripe writes an invoice for each payment"] = False
    tax: Annotated[Literal["none", "automatic"], '"automatic": Stripe finds the tax that a payment includes'] = "none"
    secret_key: Secret | None = None
    webhook_secret: Secret | None = None


class PaymentSettings(PartTable, frozen=True):
    stripe: Annotated[StripeSettings | None, "without it, credit comes from operators and vouchers"] = None
    # fmt: on


TABLES = {"payments": Annotated[PaymentSettings | None, "how credit is paid"]}
