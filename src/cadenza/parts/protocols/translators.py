"""The translators, by the name of their protocol: the service and its child processes have the same."""

from collections.abc import Mapping
from functools import partial

from cadenza.gateway.large.tasks import Translate
from cadenza.parts.protocols import anthropic_request, responses_request

TRANSLATORS: Mapping[str, Translate] = {
    "responses": responses_request.translate,
    "messages": anthropic_request.translate,
    "count_tokens": partial(anthropic_request.translate, needs_limit=False),
}
