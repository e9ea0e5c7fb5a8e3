"""cadenza account operator | password | class | suspend | resume | link | invite | remove-second-factor."""

import sys
from typing import TYPE_CHECKING

import click

from cadenza.cli.console import config_option, load_config, now_ms, say, with_store
from cadenza.core.records import CLASSES, DEFAULT_CLASS

if TYPE_CHECKING:
    from cadenza.config import Settings
    from cadenza.store.tables.links import LinkKind


@click.command()
@click.argument("email")
@click.option("--remove", is_flag=True, help="Make it an ordinary account again.")
@config_option
def operator(email: str, remove: bool, config: str | None) -> None:
    """Make an account an operator's. It sees the operator pages of the web application."""
    from cadenza.control.account.accounts import set_operator  # noqa: PLC0415 import time
    from cadenza.store.tables.audit_events import COMMAND_LINE  # noqa: PLC0415 import time

    account = with_store(
        load_config(config), lambda store: set_operator(store, email, COMMAND_LINE, now_ms(), is_operator=not remove)
    )
    say(f"{account.email} is {'an ordinary account' if remove else 'an operator'} now.")


@click.command()
@click.argument("email")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@config_option
def password(email: str, password_stdin: bool, config: str | None) -> None:
    """Set the password of an account. Every browser is signed out of it."""
    from cadenza.control.account.accounts import set_password  # noqa: PLC0415 import time
    from cadenza.store.tables.audit_events import COMMAND_LINE  # noqa: PLC0415 import time

    settings = load_config(config)
    given = read_password(from_stdin=password_stdin)
    account = with_store(settings, lambda store: set_password(store, email, given, COMMAND_LINE, now_ms()))
    say(f"The password of {account.email} is set, and every browser is signed out of it.")


@click.command("class")
@click.argument("email")
@click.argument("class_id", metavar="CLASS")
@config_option
def class_(email: str, class_id: str, config: str | None) -> None:
    """Choose the class that 'auto' means for an account, from its next request on."""
    from cadenza.control.account.accounts import set_class  # noqa: PLC0415 import time
    from cadenza.store.tables.audit_events import COMMAND_LINE  # noqa: PLC0415 import time

    settings = load_config(config)
    chosen = usable_class(settings, class_id)
    account = with_store(settings, lambda store: set_class(store, email, chosen, COMMAND_LINE, now_ms()))
    say(f"For {account.email}, auto means {account.preferred_class} now.")


@click.command()
@click.argument("email")
@config_option
def suspend(email: str, config: str | None) -> None:
    """Refuse the keys and the sign-in of an account."""
    from cadenza.control.account.accounts import suspend_account  # noqa: PLC0415 import time
    from cadenza.store.tables.audit_events import COMMAND_LINE  # noqa: PLC0415 import time

    account = with_store(load_config(config), lambda store: suspend_account(store, email, COMMAND_LINE, now_ms()))
    say(f"{account.email} is suspended: its keys are refused, and every browser is signed out.")


@click.command()
@click.argument("email")
@config_option
def resume(email: str, config: str | None) -> None:
    """End the suspension of an account."""
    from cadenza.control.account.accounts import resume_account  # noqa: PLC0415 import time
    from cadenza.store.tables.audit_events import COMMAND_LINE  # noqa: PLC0415 import time

    account = with_store(load_config(config), lambda store: resume_account(store, email, COMMAND_LINE, now_ms()))
    say(f"{account.email} is not suspended any more.")


@click.command()
@click.argument("email")
@click.argument("kind", type=click.Choice(["reset", "verify"]))
@config_option
def link(email: str, kind: str, config: str | None) -> None:
    """Print a link that resets the password of an account, or verifies its address."""
    from cadenza.control.sign_in.links import print_link  # noqa: PLC0415 import time
    from cadenza.store.tables.audit_events import COMMAND_LINE  # noqa: PLC0415 import time

    settings = load_config(config)
    chosen: LinkKind = "reset" if kind == "reset" else "verify"
    path = with_store(settings, lambda store: print_link(store, email, chosen, COMMAND_LINE, now_ms()))
    _print_link(settings, path, "an hour" if kind == "reset" else "3 days")


@click.command()
@click.argument("email", default="")
@config_option
def invite(email: str, config: str | None) -> None:
    """Print a link that creates an account: for one address or, without it, for anybody."""
    from cadenza.control.sign_in.sign_up import invite as make_invitation  # noqa: PLC0415 import time
    from cadenza.store.tables.audit_events import COMMAND_LINE  # noqa: PLC0415 import time

    settings = load_config(config)
    if settings.platform.sign_up == "closed":
        raise ValueError('Sign-up is closed: set sign_up = "invite" in [platform] of the config, and restart.')
    path = with_store(settings, lambda store: make_invitation(store, email, COMMAND_LINE, now_ms()))
    _print_link(settings, path, "7 days")


@click.command("remove-second-factor")
@click.argument("email")
@config_option
def remove_second_factor(email: str, config: str | None) -> None:
    """Remove the authenticator app, the passkeys and the recovery codes of an account."""
    from cadenza.control.sign_in.second_factor import remove_second_factors  # noqa: PLC0415 import time
    from cadenza.store.tables.audit_events import COMMAND_LINE  # noqa: PLC0415 import time

    account = with_store(load_config(config), lambda store: remove_second_factors(store, email, COMMAND_LINE, now_ms()))
    say(f"{account.email} signs in with its password alone now.")


def usable_class(settings: "Settings", asked: str | None) -> str:
    """The class that was asked for, if it has routes. Names that are no class are left to the control plane."""
    usable = [class_id for class_id in CLASSES if class_id in settings.classes]
    if asked in CLASSES and asked not in usable:
        raise ValueError(f"The class '{asked}' has no routes in the config: choose one of {', '.join(usable)}.")
    return asked or DEFAULT_CLASS


def read_password(*, from_stdin: bool) -> str:
    return sys.stdin.readline().rstrip("\r\n") if from_stdin else _ask_password()


def _ask_password() -> str:
    try:
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    except click.Abort:
        if sys.stdin.isatty():
            raise  # Ctrl-C
        raise ValueError("There is no terminal to ask for the password: send it with --password-stdin.") from None


def _print_link(settings: "Settings", path: str, lifetime: str) -> None:
    """The link alone on standard output."""
    base_url = settings.platform.base_url
    if base_url is None:
        base_url = f"http://127.0.0.1:{settings.server.port}"
        say("The config has no base_url in [platform], so this link is for a browser on this machine.")
    click.echo(base_url + path)
    say(f"It works once, within {lifetime}. Only its reader should see it.")


COMMANDS = (operator, password, class_, suspend, resume, link, invite, remove_second_factor)
