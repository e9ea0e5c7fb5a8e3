"""The examples of the reference, from examples.md, where BASE stands for the address of the service.

The key is in $CADENZA_API_KEY. A test runs those of curl and Python as they are shown.
"""

import re
from importlib.resources import files

import msgspec

BASE = "BASE-ADDRESS"
BLOCK = re.compile(r"^```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(msgspec.Struct, frozen=True):
    """The same request by three clients."""

    curl: str
    python: str
    node: str


_TEXT = files("cadenza.parts.site.docs").joinpath("examples.md").read_text(encoding="utf-8")
_BLOCKS = {head: BLOCK.findall(part) for head, _, part in (one.partition("\n") for one in _TEXT.split("## ")[1:])}
[STREAM] = _BLOCKS.pop("STREAM")
EXAMPLES = {operation_id: Example(*blocks) for operation_id, blocks in _BLOCKS.items()}
