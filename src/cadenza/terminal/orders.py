"""The options of a command that takes an order, from the fields of the order."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
import msgspec

from cadenza.core.orders import FieldMistake, OrderField, fields_of, read_order

Command = Callable[..., Any]


def order_options(kind: type[msgspec.Struct], *, is_change: bool = False) -> Callable[[Command], Command]:
    """An option for each field; what must be given is an argument. The command gets the order as `order`."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**values: Any) -> Any:  # noqa: ANN401 click's own
            typed = {one.name: values.pop(one.name) for one in fields_of(kind)}
            try:
                order = read_order(kind, {name: text for name, text in typed.items() if text not in {None, ()}})
                return command(order=order, **values)
            except FieldMistake as mistake:
                raise mistake.named(mistake.field.option) from None

        made: Command = run
        for one in reversed(fields_of(kind)):
            made = _option(one, is_change=is_change)(made)
        return made

    return decorate


def _option(one: OrderField, *, is_change: bool) -> Callable[[Command], Command]:
    if one.is_required:
        return click.argument(one.name)
    has_default = one.default is not msgspec.UNSET and not one.is_list
    removes = f" Or {one.shown.removed_by}: {one.shown.usual}." if is_change and one.is_optional else ""
    return click.option(
        one.option,
        one.name,
        metavar=None if one.words else one.shown.metavar,
        type=click.Choice(one.words) if one.words else str,
        multiple=one.is_list,
        default=one.default if has_default else None,
        show_default=bool(has_default and one.default) or (not is_change and one.shown.usual) or False,
        help=one.sentence + removes,
    )
