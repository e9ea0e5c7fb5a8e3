"""The translators, by the name of their protocol: the service and its child processes have the same."""

from collections.abc import Mapping

from cadenza.gateway.protocols.responses_body import translate
from cadenza.gateway.protocols.translation import Translate

TRANSLATORS: Mapping[str, Translate] = {"responses": translate}
