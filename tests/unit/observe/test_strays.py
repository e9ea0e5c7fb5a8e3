"""Errors that nobody catches, and what libraries log, are logged by type and place, without their text."""

import json
import subprocess
import sys
import textwrap

import pytest

from cadenza.terminal.console import print_place

NEEDLE = "n33dle"
PROGRAM = textwrap.dedent(
    """
    import gc, logging, sys, threading, warnings
    from cadenza.observe import catch_strays, make_log

    needle = sys.argv[1]
    catch_strays(make_log())

    class Held:
        def __del__(self):
            raise LookupError(needle)

    def fail():
        raise KeyError(needle)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    Held()
    gc.collect()
    logging.getLogger("library").warning("a %s", needle)
    logging.getLogger("library").error("a number: %d", needle)
    logging.getLogger("library").info(needle)
    try:
        fail()
    except KeyError:
        logging.getLogger("library").exception(needle)
    warnings.warn(needle, RuntimeWarning)
    raise ValueError(needle)
    """
)


def test_no_text_of_a_stray_error_is_printed() -> None:
    """Of threads, finalizers, loggers, warnings and the main program, type and place are logged and nothing else."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM, NEEDLE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert NEEDLE not in ended.stderr
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    errors = [line["places"][0] for line in lines if line["event"] == "internal error"]
    assert errors == ["KeyError", "LookupError", "ValueError"]
    assert [line["kind"] for line in lines if line["event"] == "a library logged"] == ["WARNING", "ERROR", "ERROR"]
    assert [line["places"][0] for line in lines if line["event"] == "a library warned"] == ["RuntimeWarning"]


def test_a_bug_in_a_command_shows_its_place_and_not_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A command prints the frames and the type of an error that it does not expect."""
    try:
        raise LookupError(NEEDLE)
    except LookupError as error:
        print_place(type(error), error, error.__traceback__)
    printed = capsys.readouterr().err
    assert "test_strays.py" in printed
    assert "internal error (LookupError)" in printed
    assert NEEDLE not in printed
