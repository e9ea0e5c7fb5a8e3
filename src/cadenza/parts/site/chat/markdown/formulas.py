"""Formulas in LaTeX, which become MathML. One that cannot be read is shown as it was written."""

import re

from latex2mathml.converter import convert
from markdown_it.rules_inline import StateInline

from cadenza.parts.site.chat.markdown.messages import escape

# \(…\), \[…\], $$…$$, and $…$ if it has a sign of a formula, so that prices are left alone. The lengths are bounded
# because every unclosed beginning is searched for its end.
FORMULA = re.compile(
    r"\\\((?:[^\\\n]|\\[^)]){0,1000}\\\)|\\\[(?:[^\\]|\\[^\]]){0,1000}\\\]|\$\$(?:[^$\\]|\\.){1,1000}\$\$"
    r"|\$(?=[^$\n]{0,1000}[\\^_{])[^\s$](?:[^$\n]{0,1000}[^\s$])?\$(?!\d)",
    re.DOTALL,
)
ALIGNED = re.compile(r"\\(begin|end)\{(?:align(?:ed)?\*?|gather(?:ed)?\*?|split)\}")  # converted as a table
TAGS = {
    *("math", "menclose", "mfrac", "mi", "mn", "mo", "mover", "mpadded", "mphantom", "mroot", "mrow", "mspace"),
    *("msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover"),
}
ATTRIBUTES: dict[str, set[str]] = {
    "math": {"display"},
    "menclose": {"notation"},
    "mfrac": {"linethickness"},
    "mo": {"accent", "fence", "form", "stretchy"},
    "mover": {"accent"},
    "mspace": {"width"},
    "mtd": {"columnalign"},
}


def take_formula(state: StateInline, silent: bool) -> bool:
    """A rule for what is inside of a line: Markdown would take the backslashes of a formula for escapes."""
    found = FORMULA.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        state.push("formula", "", 0).content = found[0]
    state.pos = found.end()
    return True


def to_mathml(source: str) -> str:
    """A formula, with the signs around it."""
    sides = 1 if source[0] == "$" != source[1] else 2
    display = "block" if source.startswith(("$$", "\\[")) else "inline"
    try:
        return convert(ALIGNED.sub(r"\\\1{matrix}", source[sides:-sides].strip()), display=display)
    except Exception:  # noqa: BLE001 the library has many kinds of errors, and a wrong formula may cause any of them
        return escape(source)
