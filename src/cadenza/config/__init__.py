"""One frozen Settings from TOML + environment, and the only reader of either.

Only the composition root and the command line import it: everything else is handed plain values.
Fails closed: any mistake in the file stops the start, and all of them are reported at once.
"""

from cadenza.config.load import load_settings
from cadenza.config.settings import (
    ClassSettings,
    ConfigError,
    Limits,
    Provider,
    Server,
    Settings,
    SharedState,
    Store,
    missing_secrets,
)

__all__ = [
    "ClassSettings",
    "ConfigError",
    "Limits",
    "Provider",
    "Server",
    "Settings",
    "SharedState",
    "Store",
    "load_settings",
    "missing_secrets",
]
