"""One frozen Settings from a TOML file and the environment. No other folder reads either.

Only the composition root and the command line import this folder. Fails closed: any mistake in the file stops the
start, and all mistakes are reported at once.
"""

from cadenza.config.load import load_settings
from cadenza.config.settings import ConfigError, Settings

__all__ = ["ConfigError", "Settings", "load_settings"]
