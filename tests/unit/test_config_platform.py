"""The configuration of the site, of e-mail and of payments."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cadenza.config import ConfigError, Settings, load_settings, missing_secrets

SITE = '[platform]\nbase_url = "https://chat.example.org"\n'
MAIL = '[mail]\nhost = "smtp.example.org"\nsender = "Cadenza <cadenza@example.org>"\n'
LOGIN = 'username = "cadenza"\npassword_env = "SMTP_PASSWORD"\n'
STRIPE = '[payments.stripe]\nsecret_key_env = "STRIPE_KEY"\nwebhook_secret_env = "STRIPE_HOOK"\n'
SECRETS = {"SMTP_PASSWORD": "hush", "STRIPE_KEY": "sk_test_1", "STRIPE_HOOK": "whsec_1"}


def load(folder: Path, text: str, environ: Mapping[str, str] = SECRETS) -> Settings:
    (folder / "cadenza.toml").write_text(text)
    return load_settings(None, environ, folder)


def test_defaults(tmp_path: Path) -> None:
    """Nobody signs up, nothing is sent, and nobody pays."""
    settings = load(tmp_path, "")
    assert (settings.platform.sign_up, settings.platform.opening_credit_nano) == ("closed", 0)
    assert (settings.mail, settings.stripe) == (None, None)


def test_everything_given(tmp_path: Path) -> None:
    """Secrets come from the environment, money is exact, and no repr shows a secret."""
    settings = load(tmp_path, f'{SITE}sign_up = "open"\nopening_credit = "0.10"\n{MAIL}{LOGIN}{STRIPE}')
    assert (settings.platform.sign_up, settings.platform.opening_credit_nano) == ("open", 100_000_000)
    assert settings.mail
    assert settings.stripe
    assert (settings.mail.port, settings.mail.security, settings.mail.password) == (587, "starttls", "hush")
    assert (settings.stripe.secret_key, settings.stripe.webhook_secret) == ("sk_test_1", "whsec_1")
    assert not any(secret in repr(settings) for secret in SECRETS.values())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (MAIL, "base_url"),
        (SITE + '[mail]\nhost = "smtp.example.org"\n', "sender"),
        (SITE + MAIL + 'username = "cadenza"\n', "username and password_env belong together"),
        (SITE + MAIL + 'password = "hush"\n', "a password must not be in this file"),
        (SITE + '[mail]\nhost = "h"\nsender = "nobody"\n', "must be an e-mail address"),
        ('[payments.stripe]\nsecret_key_env = "STRIPE_KEY"\n', "webhook_secret_env"),
        ('[payments.stripe]\nsecret_key = "sk"\n', "a secret must not be in this file"),
        ("[platform]\nopening_credit = 0.1\n", "must be quoted"),
        ('[platform]\nsign_up = "opened"\n', 'did you mean "open"?'),
    ],
)
def test_mistakes(tmp_path: Path, text: str, problem: str) -> None:
    """A mistake stops the start with a sentence that says what to do."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert problem in str(caught.value)


def test_missing_secrets_stop_the_start(tmp_path: Path) -> None:
    """Each variable that is named but empty is reported."""
    missing = missing_secrets(load(tmp_path, SITE + MAIL + LOGIN + STRIPE, {}))
    assert [line.partition(":")[0] for line in missing] == [
        "mail.password_env",
        "payments.stripe.secret_key_env",
        "payments.stripe.webhook_secret_env",
    ]
