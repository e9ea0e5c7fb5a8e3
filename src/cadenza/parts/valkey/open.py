"""Opens the shared state in Valkey."""

from cadenza.fleet.shared import OpenSharedState
from cadenza.parts.valkey.state import ValkeyState

open_shared_state: OpenSharedState = ValkeyState
