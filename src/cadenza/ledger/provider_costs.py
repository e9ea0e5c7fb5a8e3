"""What providers charge for a request, beside what its account is charged."""

from collections.abc import Mapping

from cadenza.core.money import Price
from cadenza.core.records import Outcome

Costs = Mapping[tuple[str, str], Price]  # of a token, by provider and model


class ProviderCosts:
    """The costs that are known. A reload of the config replaces them."""

    def __init__(self) -> None:
        self.known: Costs = {}

    def of(self, outcome: Outcome) -> int | None:
        """What the providers charge for a reply; None if the costs of one of them are not known."""
        known, usage = self.known, outcome.usage
        if not known or usage is None or (cost := known.get((outcome.provider, outcome.model))) is None:
            return None
        cost_nano = cost.charge(usage)
        for part in outcome.also_billed:
            if (cost := known.get((part.provider, part.model))) is None:
                return None
            cost_nano += cost.quote(part.prompt_tokens, part.completion_tokens)
        return cost_nano
