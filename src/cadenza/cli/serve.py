"""cadenza serve and cadenza migrate."""

import click

from cadenza.cli.console import config_option, load_config, say, say_backup


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
    from cadenza.cli.start import run_service  # noqa: PLC0415 import time

    settings = load_config(config)
    run_service(settings, host or settings.server.host, settings.server.port if port is None else port)


@click.command()
@config_option
def migrate(config: str | None) -> None:
    """Upgrade the store to the current schema."""
    import asyncio  # noqa: PLC0415 import time

    from cadenza.store.address import open_store  # noqa: PLC0415 import time
    from cadenza.store.migrate import migrate as migrate_store  # noqa: PLC0415 import time

    settings = load_config(config)

    async def run() -> str:
        store = open_store(settings.store.url)
        try:
            return await migrate_store(store, say_backup)
        finally:
            await store.close()

    say(f"The store's schema is at revision {asyncio.run(run())}.")
