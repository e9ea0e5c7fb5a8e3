"""Text as HTML, without Markdown: for what cannot be rendered."""

from html import escape as escape_html

HEAVY = '<p class="hint">Shown as plain text: it takes too long to format.</p>\n'
BUSY = '<p class="hint">Shown as plain text: too many replies are being formatted at the moment.</p>\n'


def escape(text: str) -> str:
    return escape_html(text, quote=False)


def plain_html(text: str) -> str:
    return f'<pre class="plain" tabindex="0">{escape(text)}</pre>\n'
