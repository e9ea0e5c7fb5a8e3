"""Blocks of text: paragraphs, headings, tables, and items of lists, which follow each other without an empty line."""

from collections.abc import Iterable


class ListItem(str):
    """A block that is an item of a list."""

    __slots__ = ()


def join_blocks(blocks: Iterable[str]) -> str:
    pieces, is_item = list[str](), False
    for block in blocks:
        was_item, is_item = is_item, isinstance(block, ListItem)
        pieces += ("\n" if was_item and is_item else "\n\n", block)
    return "".join(pieces[1:])
