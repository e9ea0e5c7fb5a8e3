"""What can be wrong with the margins."""

from cadenza.observe.problem import Rule

RULES = (
    Rule(
        "margin_negative",
        "ticket",
        "A class costs more than it is charged.",
        "Raise its price with 'cadenza class price', or change its route; 'cadenza margin' has the sums.",
    ),
)
