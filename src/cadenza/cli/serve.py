"""cadenza serve. Its help imports nothing of the service."""

import click

from cadenza.terminal.console import config_option


@click.command()
@config_option
@click.option("--host", metavar="ADDRESS", show_default="server.host in the config", help="The address to listen on.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    show_default="server.port in the config",
    help="The port to listen on; 0 for any free one.",
)
def serve(config: str | None, host: str | None, port: int | None) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    from cadenza.cli.start import start  # noqa: PLC0415 the whole service

    start(config, host, port)
