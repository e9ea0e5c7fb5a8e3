"""The messages between the service and the child process that renders Markdown, and text as HTML without Markdown."""

from html import escape as escape_html

import msgspec

from cadenza.core.content import Content

# The longest text of a task: one block of it takes a second at most, unless it is hostile.
TASK_CHARS_MAX = 32 * 1024
HEAVY = '<p class="hint">Shown as plain text: it takes too long to format.</p>\n'
BUSY = '<p class="hint">Shown as plain text: too many replies are being formatted at the moment.</p>\n'


class RenderTask(Content, msgspec.Struct, frozen=True):
    """Markdown whose blocks are to be rendered, as far as they are complete.

    `fence` is the opening line of a code block that the text continues. `is_end`: no text follows.
    """

    text: str
    fence: str = ""
    is_end: bool = True


class Rendered(Content, msgspec.Struct, frozen=True):
    """The HTML of the first `chars` characters of a task.

    `fence` is the opening line of a code block that the rest continues. `is_plain`: they could not be rendered.
    """

    html: str
    chars: int
    fence: str = ""
    is_plain: bool = False


def escape(text: str) -> str:
    return escape_html(text, quote=False)


def plain_html(text: str) -> str:
    return f'<pre class="plain" tabindex="0">{escape(text)}</pre>\n'
