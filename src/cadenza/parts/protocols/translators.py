"""The translators, by the name of their protocol: the service and its child processes have the same."""

from collections.abc import Mapping
from functools import partial

from cadenza.parts.protocols import messages_request, responses_body
from cadenza.parts.protocols.translation import Translate

TRANSLATORS: Mapping[str, Translate] = {
    "responses": responses_body.translate,
    "messages": messages_request.translate,
    "count_tokens": partial(messages_request.translate, needs_limit=False),
}
