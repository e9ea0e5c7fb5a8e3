"""Translates the errors of asyncpg into those of the store.

No message shows a value: Postgres quotes values on the lines after the first, asyncpg after a colon.
"""

import asyncpg  # type: ignore[import-untyped]

from cadenza.store.store import StoreBusy, StoreRefused, StoreUnavailable, StoreUncertain, unavailable

NO_TABLE = "42P01"
NO_PERMISSION = "42501"
LOCK_TIMEOUT = "55P03"
READ_ONLY = "25006"
TOO_LATE = "57014"
TOO_MANY = "53300"
REFUSED_CHANGE = "23"  # classes of SQLSTATE
BAD_VALUE = "22"
BUG = "42"
CONNECTION_LOST = ("08", "57P0", READ_ONLY)  # a broken connection, a shutdown or crash, a demoted primary
AGAIN = {"40001", "40P01"}  # serialization failure, deadlock
GENERAL_ADVICE = "Check that Postgres runs and that the address names the right host, user and database."
LOOK_ADVICE = "Look whether it was made before you try again."
ADVICE = {
    READ_ONLY: "Connect to the primary: a standby, or a primary in read-only mode, takes no write.",
    TOO_MANY: "Raise max_connections of Postgres, or run fewer processes: each opens up to {connections_max}.",
    NO_PERMISSION: "Give its user the right to read and write these tables.",
    TOO_LATE: "It is overloaded, or its disk is slow.",
}


class ConnectionLost(Exception):
    """A statement was not answered: the connection broke, or it took too long."""


class CommitLost(ConnectionLost):
    """A COMMIT was not answered, or answered by a server that shuts down: it may have been carried out."""


DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, ConnectionLost)
CONNECT_ERRORS = (*DRIVER_ERRORS, OSError, ValueError)


class Translator:
    """Translates the errors of one server."""

    def __init__(self, where: str, connections_max: int) -> None:
        self._where = where
        self._connections_max = connections_max

    def translate(self, error: Exception) -> Exception:
        """Return the error of the store for one of DRIVER_ERRORS; the same error if it is a bug of ours."""
        if isinstance(error, CommitLost):
            found = self.unavailable(f"it did not confirm a change, which may have been made ({error})", LOOK_ADVICE)
            return StoreUncertain(found.problem, found.advice)
        return self._translate(error)

    def _translate(self, error: Exception) -> Exception:
        state = sqlstate(error)
        if isinstance(error, ValueError) or state.startswith(BAD_VALUE):  # found by asyncpg, or by Postgres
            return StoreRefused(f"The store refused a value: {_reason(error)}.")
        if state.startswith(REFUSED_CHANGE):
            return StoreRefused(f"The store refused a change: {_first_line(error)}.")
        if state == NO_TABLE:
            return self.unavailable("no such table")
        if state == LOCK_TIMEOUT:
            found = self.unavailable(_reason(error))
            return StoreBusy(found.problem, found.advice)
        if state.startswith(BUG) and state != NO_PERMISSION:
            return error
        return self.unavailable(_reason(error), ADVICE.get(state, GENERAL_ADVICE))

    def translate_connecting(self, error: Exception) -> Exception:
        """The same for CONNECT_ERRORS. What is wrong with an address is not shown: it has a password."""
        if isinstance(error, ValueError):
            return self.unavailable("its address is not understood")
        if isinstance(error, OSError):
            return self.unavailable(failure_reason(error))
        return self.translate(error)

    def unavailable(self, reason: str, advice: str = GENERAL_ADVICE) -> StoreUnavailable:
        return unavailable(self._where, reason, advice.format(connections_max=self._connections_max))


def sqlstate(error: Exception) -> str:
    return getattr(error, "sqlstate", None) or ""


def can_be_retried(error: Exception) -> bool:
    """Whether the same work can succeed in a new transaction: after a deadlock, or with newly prepared statements."""
    return sqlstate(error) in AGAIN or is_outdated(error)


def has_failed(error: Exception) -> bool:
    """Whether Postgres itself said that a COMMIT failed."""
    return bool(sqlstate(error)) and not sqlstate(error).startswith(CONNECTION_LOST)


def is_outdated(error: Exception) -> bool:
    """Whether a migration changed the tables that the prepared statements of our connections were made for."""
    return isinstance(error, asyncpg.InvalidCachedStatementError | asyncpg.OutdatedSchemaCacheError)


def failure_reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return error.strerror or _first_line(error) or "no connection"


def _reason(error: Exception) -> str:
    return _first_line(error).partition(":")[0]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
