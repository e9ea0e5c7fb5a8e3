"""cadenza classes list | reload."""

import typer

from cadenza.cli.console import AsJson, Config, print_list, say, settings_of, with_store
from cadenza.config import ConfigError, missing_secrets
from cadenza.control.classes import announce_reload

classes = typer.Typer(help="Classes and their routes.", no_args_is_help=True)
COLUMNS = ("class", "order", "weight", "provider", "model", "context_tokens", "max_output_tokens", "continue")


@classes.command("list")
def list_(as_json: AsJson = False, config: Config = None) -> None:
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
        for class_id, one in settings_of(config).classes.items()
        for route in one.routes
    ]
    print_list(rows, COLUMNS, as_json=as_json)


@classes.command()
def reload(config: Config = None) -> None:
    """Have running servers read classes, routes, providers, prices and limits again. No stream is dropped."""
    settings = settings_of(config)
    if missing := missing_secrets(settings):
        raise ConfigError(missing, settings.source)
    with_store(config, announce_reload)
    say("Every server on this store reads its config again before its next request. Mistakes are in its log.")
