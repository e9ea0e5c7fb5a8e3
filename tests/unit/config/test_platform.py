"""The configuration of the site, of e-mail and of payments."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cadenza.config import ConfigError, Settings, load_settings

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
    assert (settings.mail, settings.payments) == (None, None)


def test_everything_given(tmp_path: Path) -> None:
    """Secrets come from the environment, money is exact, and no repr shows a secret."""
    settings = load(tmp_path, f'{SITE}sign_up = "open"\nopening_credit = "0.10"\n{MAIL}{LOGIN}{STRIPE}')
    assert (settings.platform.sign_up, settings.platform.opening_credit_nano) == ("open", 100_000_000)
    assert settings.mail
    assert settings.payments
    assert (settings.mail.port, settings.mail.security, settings.mail.password) == (587, "starttls", "hush")
    assert (settings.payments.secret_key, settings.payments.webhook_secret) == ("sk_test_1", "whsec_1")
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
        ('[platform]\nsecret_key = "x"\n', "a secret must not be in this file"),
        ('[platform]\nsecret_key_env = "SMTP_PASSWORD"\n', "too short"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, problem: str) -> None:
    """A mistake stops the start with a sentence that says what to do."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert problem in str(caught.value)


def test_the_key_of_the_site_comes_from_the_environment(tmp_path: Path) -> None:
    """From the variable that is named or, without a name, from the usual one; its repr is hidden."""
    usual, named = "u" * 32, "n" * 32
    environ = {"CADENZA_SECRET_KEY": usual, "MY_KEY": named}
    assert load(tmp_path, "", {}).platform.secret_key is None
    assert load(tmp_path, "", environ).platform.secret_key == usual
    settings = load(tmp_path, '[platform]\nsecret_key_env = "MY_KEY"\n', environ)
    assert (settings.platform.secret_key, named in repr(settings)) == (named, False)


def test_missing_secrets_stop_the_start(tmp_path: Path) -> None:
    """Each variable that is named but empty is reported."""
    site = SITE + 'secret_key_env = "SITE_KEY"\n'
    missing = load(tmp_path, site + MAIL + LOGIN + STRIPE, {}).missing_secrets
    assert [line.partition(":")[0] for line in missing] == [
        "platform.secret_key_env",
        "mail.password_env",
        "payments.stripe.secret_key_env",
        "payments.stripe.webhook_secret_env",
    ]
