"""The child process that renders Markdown, one task after the other. Only process.py starts it.

Its memory is limited, and so is its CPU time for each task: beyond that it dies, because a regular expression cannot be
interrupted. It imports the lexers of all languages (a quarter of a second, 16 MB) before it enters its sandbox.
"""

import msgspec

from cadenza.children.confine import allow_cpu, confine, enter_sandbox, read_limits, serve_tasks
from cadenza.parts.site.chat.markdown.messages import RenderTask
from cadenza.parts.site.chat.markdown.render import HtmlRenderer, import_lexers

SAMPLE = (
    "[a](http://example.org) &amp; **b** $c^2$\n\n```python\nprint(1)\n```\n"  # imports what rendering imports later
)


def main() -> None:
    limits = read_limits()
    confine(limits)
    renderer = HtmlRenderer()
    import_lexers()
    renderer.render(SAMPLE)
    enter_sandbox()

    def serve(head: bytearray, _: bytearray) -> bytes:
        allow_cpu(limits.cpu_s)
        return msgspec.msgpack.encode(renderer.render_complete(msgspec.msgpack.decode(head, type=RenderTask)))

    serve_tasks(serve)


if __name__ == "__main__":
    main()
