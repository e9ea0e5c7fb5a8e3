"""Builds the settings of the web application: the site itself, e-mail and payments."""

from collections.abc import Mapping

from cadenza.config.checks import Table
from cadenza.config.read import Reader
from cadenza.config.settings import Mail, Platform, Secret, Stripe

SECRET_KEY_ENV = "CADENZA_SECRET_KEY"  # noqa: S105 the name of a variable
SECRET_KEY_CHARS_MIN = 32


def build_platform(values: Table, reader: Reader, environ: Mapping[str, str]) -> Platform:
    credit_nano = values.pop("opening_credit", 0)
    variable = values.get("secret_key_env", SECRET_KEY_ENV)
    secret_key = _secret(variable, environ)
    if secret_key and len(secret_key) < SECRET_KEY_CHARS_MIN:
        reader.problem(
            ("platform", "secret_key_env"), f"the value of {variable} is too short: {SECRET_KEY_CHARS_MIN} characters"
        )
    return Platform(**values, opening_credit_nano=credit_nano, secret_key=secret_key)


def build_mail(values: Table, platform: Platform, reader: Reader, environ: Mapping[str, str]) -> Mail | None:
    """None without the section: then the command line makes the links that would be sent.

    The links need the site's address: the host that a request names may be anybody's.
    """
    if not values:
        return None
    if platform.base_url is None:
        reader.problem(("platform", "base_url"), "missing; e-mails have links, which begin with it")
    for name in ("host", "sender"):
        if name not in values:
            reader.problem(("mail", name), "missing")
    if ("username" in values) != ("password_env" in values):
        reader.problem(("mail",), "username and password_env belong together: give both or none")
    given = {"host": "", "sender": "", **values}
    return Mail(**given, password=_secret(values.get("password_env"), environ))


def build_stripe(values: Table, reader: Reader, environ: Mapping[str, str]) -> Stripe | None:
    if not values:
        return None
    names = ("secret_key_env", "webhook_secret_env")
    for name in names:
        if name not in values:
            reader.problem(("payments", "stripe", name), "missing; it must be the name of an environment variable")
    key, webhook = (_secret(values.get(name), environ) for name in names)
    return Stripe(**dict.fromkeys(names, "") | values, secret_key=key, webhook_secret=webhook)


def _secret(variable: str | None, environ: Mapping[str, str]) -> Secret | None:
    value = environ.get(variable, "").strip() if variable else ""
    return Secret(value) if value else None
