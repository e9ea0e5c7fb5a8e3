"""What Python and libraries would print by themselves: errors that nobody catches, their log lines, their warnings.

Their texts may quote what a client sent. So the log gets the type and the place of each, and nothing else is written.
"""

import logging
import sys
import threading
import warnings

from cadenza.observe.log import Log, places


def catch_strays(log: Log) -> None:
    """Call it once in a process, as soon as it has a log."""
    sys.excepthook = lambda _kind, error, _trace: log.critical("internal error", places=places(error))
    sys.unraisablehook = lambda found: _report(log, found.exc_value, found.exc_type)
    threading.excepthook = lambda found: _report(log, found.exc_value, found.exc_type)
    logging.raiseExceptions = False  # or a line that cannot be formatted is printed with its arguments
    logging.root.handlers = [_LibraryLines(log)]

    warnings.showwarning = lambda _text, category, filename, lineno, *_: log.warning(
        "a library warned", places=[category.__name__, f"{filename}:{lineno}"]
    )


def _report(log: Log, error: BaseException | None, kind: type[BaseException]) -> None:
    if not issubclass(kind, SystemExit):
        log.error("internal error", places=places(error) if error else [kind.__name__])


class _LibraryLines(logging.Handler):
    """Takes the warnings and errors that libraries log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        at = [f"{record.pathname}:{record.lineno} {record.funcName}", *(places(error) if error else ())]
        self._log.warning("a library logged", logger=record.name, kind=record.levelname, places=at)
