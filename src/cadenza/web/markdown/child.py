"""The child process that renders Markdown, one list of blocks after the other. Only process.py starts it.

Its memory is limited, and so is its CPU time for each list: beyond that it dies, because a regular expression cannot be
interrupted.
"""

import msgspec

from cadenza.children.confine import allow_cpu, close_door, confine, read_limits, serve_tasks
from cadenza.web.markdown.render import BlockRenderer


def main() -> None:
    limits = read_limits()
    confine(limits)
    renderer = BlockRenderer()
    close_door(may_read_files=True)  # the lexers of languages are imported when they are needed

    def serve(head: bytearray, _: bytearray) -> bytes:
        allow_cpu(limits.cpu_s)
        sources = msgspec.msgpack.decode(head, type=list[str])
        return msgspec.msgpack.encode([renderer.render(source) for source in sources])

    serve_tasks(serve)


if __name__ == "__main__":
    main()
