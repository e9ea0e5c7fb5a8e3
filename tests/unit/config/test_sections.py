"""What the tables of the server, the site, e-mail, payments, retention and traces say, and where their secrets are."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cadenza.config import ConfigError, Settings, load_settings
from cadenza.core.retention import RetentionLimits

SITE = '[platform]\nbase_url = "https://chat.example.org"\n'
MAIL = '[mail]\nhost = "smtp.example.org"\nsender = "Cadenza <cadenza@example.org>"\n'
LOGIN = 'username = "cadenza"\npassword_env = "SMTP_PASSWORD"\n'
STRIPE = '[payments.stripe]\nsecret_key_env = "STRIPE_KEY"\nwebhook_secret_env = "STRIPE_HOOK"\n'
TOKEN = '[server]\nmetrics_token_env = "METRICS_TOKEN"\n'
OBSERVE = '[observe]\notlp_url = "https://collector.example.org"\nheaders_env = "OTLP"\n'
SECRETS = {"SMTP_PASSWORD": "hush", "STRIPE_KEY": "sk_test_1", "STRIPE_HOOK": "whsec_1"}


def load(folder: Path, text: str, environ: Mapping[str, str] = SECRETS) -> Settings:
    (folder / "cadenza.toml").write_text(text)
    return load_settings(None, environ, folder)


def test_defaults(tmp_path: Path) -> None:
    """Nobody signs up or pays, nothing is sent, no token is set, and only proxies on this machine are trusted."""
    settings = load(tmp_path, "", {})
    assert (settings.platform.sign_up, settings.platform.opening_credit_nano) == ("closed", 0)
    assert (settings.mail, settings.payments.stripe) == (None, None)
    assert (settings.server.trusted_proxies, settings.server.metrics_token) == (("127.0.0.1", "::1"), None)
    assert settings.retention == RetentionLimits(30, 7, None, None, 300, 600)


def test_site_mail_and_payments(tmp_path: Path) -> None:
    """Secrets come from the environment, money is exact, and no repr shows a secret."""
    settings = load(tmp_path, f'{SITE}sign_up = "open"\nopening_credit = "0.10"\n{MAIL}{LOGIN}{STRIPE}')
    assert (settings.platform.sign_up, settings.platform.opening_credit_nano) == ("open", 100_000_000)
    mail, stripe = settings.mail, settings.payments.stripe
    assert mail
    assert stripe
    assert (mail.port, mail.security, mail.password) == (587, "starttls", "hush")
    assert (stripe.secret_key, stripe.webhook_secret) == ("sk_test_1", "whsec_1")
    assert not any(secret in repr(settings) for secret in SECRETS.values())


def test_the_key_of_the_site_comes_from_the_environment(tmp_path: Path) -> None:
    """From CADENZA_SECRET_KEY; it is not shown, and a short one stops the start."""
    settings = load(tmp_path, "", {"CADENZA_SECRET_KEY": 32 * "k"})
    assert (settings.platform.secret_key, 32 * "k" in repr(settings)) == (32 * "k", False)
    with pytest.raises(ConfigError, match="platform: the value of CADENZA_SECRET_KEY is too short: 32 characters"):
        load(tmp_path, "", {"CADENZA_SECRET_KEY": 31 * "k"})


@pytest.mark.parametrize(
    "environ", [{}, dict.fromkeys([*SECRETS, "METRICS_TOKEN", "OTLP"], " ")], ids=["unset", "empty"]
)
def test_missing_secrets_stop_the_start(tmp_path: Path, environ: dict[str, str]) -> None:
    """Each variable that is named but unset or empty is reported, with what belongs into it."""
    settings = load(tmp_path, TOKEN + SITE + MAIL + LOGIN + STRIPE + OBSERVE, environ)
    words = "{}: the environment variable {} is unset or empty; put {} into it."
    assert settings.missing_secrets == (
        words.format("server.metrics_token_env", "METRICS_TOKEN", "the token for /metrics"),
        words.format("mail.password_env", "SMTP_PASSWORD", "the password of the SMTP server"),
        words.format("payments.stripe.secret_key_env", "STRIPE_KEY", "the secret key of Stripe"),
        words.format("payments.stripe.webhook_secret_env", "STRIPE_HOOK", "the secret of the webhook"),
        words.format("observe.headers_env", "OTLP", "the headers for the collector"),
    )
    with pytest.raises(ConfigError, match="METRICS_TOKEN"):
        settings.require_secrets()


@pytest.mark.parametrize(
    ("text", "environ", "problem"),
    [
        *(
            (TOKEN, {"METRICS_TOKEN": token}, "server.metrics_token_env: the token must be one word of printable ASCII")
            for token in ("two words", "t0ken\nx", "t0kén", "t0\x07ken")
        ),
        *(
            (OBSERVE, {"OTLP": headers}, "observe.headers_env: the value must be headers like: authorization=Bearer")
            for headers in ("abc", "a=b\r\nc=d", "a=b,,c=d")
        ),
    ],
)
def test_secrets_that_cannot_be_sent(tmp_path: Path, text: str, environ: dict[str, str], problem: str) -> None:
    """A token or headers with line breaks, control characters or a wrong form are refused and not shown."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environ)
    [found] = caught.value.problems
    assert problem in found
    assert not any(value in found for value in environ.values())


def test_the_token_and_the_headers(tmp_path: Path) -> None:
    """They are the values of their variables, without blanks around them; a hundredth of the requests is traced."""
    environ = {"METRICS_TOKEN": "t0ken\n", "OTLP": "authorization=Bearer abc, x-tenant=1"}
    settings = load(tmp_path, TOKEN + OBSERVE, environ)
    assert settings.server.metrics_token == "t0ken"
    assert (settings.observe.headers, settings.observe.sample) == (environ["OTLP"], 0.01)
    assert not any(secret in repr(settings) for secret in ("t0ken", "abc"))


@pytest.mark.parametrize(
    ("given", "proxies"),
    [
        ("[]", ()),
        ('["10.0.0.1"]', ("10.0.0.1/32",)),
        ('["10.0.0.0/8", "2001:db8::/32"]', ("10.0.0.0/8", "2001:db8::/32")),
        ('["::1", "::ffff:10.0.0.1"]', ("::1/128", "10.0.0.1/32")),
    ],
)
def test_trusted_proxies(tmp_path: Path, given: str, proxies: tuple[str, ...]) -> None:
    """Addresses and networks of both families; a mapped IPv4 address is the IPv4 address."""
    assert load(tmp_path, f"[server]\ntrusted_proxies = {given}\n").server.trusted_proxies == proxies


def test_retention(tmp_path: Path) -> None:
    """The limits that are given replace the defaults."""
    given = "session_days = 2\nsession_idle_days = 1\naudit_event_days = 90\nusage_days = 400\npage_s = 0"
    assert load(tmp_path, f"[retention]\n{given}\n").retention == RetentionLimits(2, 1, 90, 400, 300, 0)
