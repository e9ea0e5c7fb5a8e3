"""What can be wrong with payments."""

from collections.abc import Iterator

from cadenza.observe.facts import Facts
from cadenza.observe.problem import Found, Rule

EVENTS = "cadenza_payment_events_total"


def is_refused(facts: Facts) -> Iterator[Found]:
    events = facts.count_of_hour(EVENTS)
    if events["bad_signature"] and not events["done"]:
        yield Found(f"{events['bad_signature']:,} events of the last hour had a wrong signature.")


WEBHOOK_FAILS = Rule(
    "webhook_fails",
    "page",
    "The payments webhook fails.",
    "Check webhook_secret_env in [payments.stripe] against the provider's page of the webhook.",
    is_refused,
    counters={EVENTS: "result"},
)
RULES = (WEBHOOK_FAILS,)
