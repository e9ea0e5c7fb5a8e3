"""cadenza classes list | reload."""

import click

from cadenza.cli.console import config_option, json_option, load_config, print_list, say, with_store

COLUMNS = ("class", "order", "weight", "provider", "model", "context_tokens", "max_output_tokens", "continue")


@click.group()
def classes() -> None:
    """Classes and their routes."""


@classes.command("list")
@json_option
@config_option
def list_(as_json: bool, config: str | None) -> None:
    """List the routes of every class, in the order in which they are tried."""
    rows = [
        {
            "class": class_id,
            "order": route.order,
            "weight": route.weight,
            "provider": route.provider,
            "model": route.model,
            "context_tokens": route.context_tokens,
            "max_output_tokens": route.max_output_tokens,
            "continue": route.continues,
        }
        for class_id, one in load_config(config).classes.items()
        for route in one.routes
    ]
    print_list(rows, COLUMNS, as_json=as_json)


@classes.command()
@config_option
def reload(config: str | None) -> None:
    """Make running servers reload classes, routes, providers, prices, limits and grounding. No stream is dropped."""
    from cadenza.config import ConfigError, missing_secrets  # noqa: PLC0415 import time
    from cadenza.control.operator import announce_reload  # noqa: PLC0415 import time

    settings = load_config(config)
    if missing := missing_secrets(settings):
        raise ConfigError(missing, settings.source)
    with_store(settings, announce_reload)
    say("Every server on this store reloads its config before its next request. Its log shows any mistakes.")
