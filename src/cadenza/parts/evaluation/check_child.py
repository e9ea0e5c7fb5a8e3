"""The child process in which the patterns and schemas of a suite are tried. Only graders.py starts it.

What cannot be tried within the limits ends it.
"""

import re

import jsonschema_rs
import msgspec

from cadenza.children.confine import allow_cpu, confine, enter_sandbox, read_limits, serve_tasks
from cadenza.parts.evaluation.check_tasks import MATCH, NO_MATCH, TASKS, PatternTask


def main() -> None:
    limits = read_limits()
    confine(limits)
    enter_sandbox()

    def serve(head: bytearray, body: bytearray) -> bytes:
        allow_cpu(limits.cpu_s)
        return MATCH if matches(head, body) else NO_MATCH

    serve_tasks(serve)


def matches(head: bytearray, body: bytearray) -> bool:
    task = TASKS.decode(head)
    if isinstance(task, PatternTask):
        pattern, text = re.compile(task.pattern, task.flags), body.decode()
        return bool(pattern.fullmatch(text) if task.is_full else pattern.search(text))
    return jsonschema_rs.validator_for(task.schema).is_valid(msgspec.json.decode(body))


if __name__ == "__main__":
    main()
