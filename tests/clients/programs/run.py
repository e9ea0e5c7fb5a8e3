"""Runs a program from standard input, then one of this folder. They import the same library, which takes seconds."""

import runpy
import sys

exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
sys.stdout.write("\n")
runpy.run_module(f"tests.clients.programs.{sys.argv[1]}", run_name="__main__")
