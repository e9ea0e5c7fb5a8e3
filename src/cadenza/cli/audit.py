"""cadenza audit retention: whether content stays anywhere, on this installation."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cadenza.cli.console import config_option, json_option, load_config, print_json, say

if TYPE_CHECKING:
    from cadenza.audit.live import LiveOptions

FOUND_CODE = 1
FAILED_CODE = 2
INTERRUPTED_CODE = 130


@click.command()
@click.option("--live", is_flag=True, help="Audit the service that runs, instead of one that is started for it.")
@click.option("--store", metavar="URL", help="An empty Postgres database for the audit.", show_default="a new one")
@click.option("--url", metavar="URL", help="With --live: the address of the service.", show_default="as in the config")
@click.option(
    "--log",
    "logs",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="With --live: a file or folder with the log; may be repeated.",
)
@click.option("--journal", metavar="UNIT", help="With --live: the systemd unit whose journal is the log.")
@click.option("--yes", is_flag=True, help="With --live: do not ask.")
@click.option("--report", metavar="FILE", type=click.Path(path_type=Path), help="Write a page in Markdown.")
@json_option
@config_option
def retention(  # noqa: PLR0913 the options of one command
    *,
    live: bool,
    store: str | None,
    url: str | None,
    logs: tuple[Path, ...],
    journal: str | None,
    yes: bool,
    report: Path | None,
    as_json: bool,
    config: str | None,
) -> None:
    """Send random words as content, in every place where content can be, and search for them everywhere.

    A service of its own is started with your config, on a store of the same kind, and removed again; providers are
    replaced by a built-in one. With --live, the service that runs is used, by an account that is erased afterwards.

    Exit code: 0 if nothing was found, 1 if something was, 2 if the audit could not be made.
    """
    from cadenza.audit.live import LiveOptions  # noqa: PLC0415 import time

    if not live and (url or logs or journal or yes):
        raise click.UsageError("--url, --log, --journal and --yes belong to --live.")
    if live and store:
        raise click.UsageError("--store is not for --live, which searches the store of the service.")
    if report and report.exists():
        raise click.UsageError(f"{report} exists already: give another name.")
    options = LiveOptions(url, logs, journal) if live else None
    if options and not yes:
        _confirm()
    sys.exit(_audit(config, store, options, report, as_json=as_json))


def _confirm() -> None:
    say(
        "This sends random words through the service that runs. Some of them reach its providers, and cost a few cents "
        "at most.\nAn account is made for it, with credit, and erased afterwards; its usage stays in the ledger."
    )
    try:
        click.confirm("Go on?", abort=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("There is no terminal to ask: add --yes.") from None


def _audit(
    config: str | None, store: str | None, options: "LiveOptions | None", report: Path | None, *, as_json: bool
) -> int:
    """Run the audit and print what it found. The exit code."""
    import asyncio  # noqa: PLC0415 import time
    import time  # noqa: PLC0415 import time
    import tomllib  # noqa: PLC0415 import time

    from cadenza.audit.findings import AuditVerdict, Findings  # noqa: PLC0415 import time
    from cadenza.audit.live import audit_running_service  # noqa: PLC0415 import time
    from cadenza.audit.report import config_facts, moment, page, program_facts, summary, to_json  # noqa: PLC0415
    from cadenza.audit.run import audit_own_service, end_by_signal  # noqa: PLC0415 import time
    from cadenza.config import ConfigError  # noqa: PLC0415 import time
    from cadenza.core.errors import ControlError  # noqa: PLC0415 import time
    from cadenza.store.store import StoreUnavailable  # noqa: PLC0415 import time

    findings, began_s = Findings(), time.time()
    try:
        settings = load_config(config)
        if options:
            say("Auditing the service that runs …")
            work = audit_running_service(settings, options, findings)
        else:
            say("Auditing a service of its own …")
            raw = tomllib.loads(settings.source.read_text(encoding="utf-8-sig")) if settings.source else {}
            work = audit_own_service(settings, raw, store, findings)
        asyncio.run(end_by_signal(work))
    except (ConfigError, ControlError, StoreUnavailable, ValueError, OSError) as error:
        say(f"cadenza: the audit could not be made: {error}")
        return FAILED_CODE
    except KeyboardInterrupt:
        say("\nInterrupted. What the audit had made is removed.")
        return INTERRUPTED_CODE
    took = {"began": moment(began_s), "took": f"{time.time() - began_s:.0f} s"}
    mode = {"mode": "the service that runs" if options else "a service of its own"}
    findings.facts = {**took, **mode, **program_facts(), **config_facts(settings)}
    if as_json:
        print_json([to_json(findings)])
    else:
        click.echo("\n".join(summary(findings)))
    if report:
        report.write_text(page(findings), encoding="utf-8")
        say(f"Report: {report}")
    codes = {AuditVerdict.CLEAN: 0, AuditVerdict.FOUND: FOUND_CODE, AuditVerdict.INCONCLUSIVE: FAILED_CODE}
    return codes[findings.verdict]
