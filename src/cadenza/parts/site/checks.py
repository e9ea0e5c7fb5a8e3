"""What `cadenza doctor` finds out about the key that encrypts the secrets of authenticator apps."""

from cadenza.config import Settings
from cadenza.parts.site.settings import SITE_KEY_VARIABLE, PlatformSettings
from cadenza.terminal.checks import Check, Checks


async def check_site_key(settings: Settings) -> list[Check]:
    """Beside SQLite, the service makes one."""
    if PlatformSettings.given_in(settings).secret_key:
        return [Check("site key", "ok", "from the environment")]
    if settings.store.url.startswith("sqlite:"):
        return [Check("site key", "ok", "in a file beside the store, which the first authenticator app creates")]
    todo = f"Set {SITE_KEY_VARIABLE} to 32 random characters or more, on every machine."
    return [Check("site key", "warning", "not set: the secrets of authenticator apps are stored unencrypted", todo)]


checks: Checks = check_site_key
