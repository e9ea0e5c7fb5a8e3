"""The child process that renders Markdown, one list of blocks after the other. Only process.py starts it.

Its memory is limited, and so is its CPU time for each list: beyond that it dies, because a regular expression cannot be
interrupted. It imports the lexers of all languages first (a quarter of a second, 16 MB), and then gives up files.
"""

import msgspec

from cadenza.children.confine import allow_cpu, confine, enter_sandbox, read_limits, serve_tasks
from cadenza.web.chat.markdown.render import BlockRenderer, import_lexers

SAMPLE = "[a](http://example.org) &amp; **b**\n\n```python\nprint(1)\n```\n"  # imports what rendering imports later


def main() -> None:
    limits = read_limits()
    confine(limits)
    renderer = BlockRenderer()
    import_lexers()
    renderer.render(SAMPLE)
    enter_sandbox()

    def serve(head: bytearray, _: bytearray) -> bytes:
        allow_cpu(limits.cpu_s)
        sources = msgspec.msgpack.decode(head, type=list[str])
        return msgspec.msgpack.encode([renderer.render(source) for source in sources])

    serve_tasks(serve)


if __name__ == "__main__":
    main()
