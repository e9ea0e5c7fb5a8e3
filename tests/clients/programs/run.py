"""Runs the programs of this folder that standard input names, each after its example, if there is one.

They run in one process, because they import the same library, which takes seconds. What each printed ends with a NUL.
"""

import json
import runpy
import sys

for name, example in json.load(sys.stdin).items():
    exec(compile(example, name, "exec"), {"__name__": "__main__"})
    sys.stdout.write("\n")
    runpy.run_module(f"tests.clients.programs.{name}", run_name="__main__")
    sys.stdout.write("\0")
