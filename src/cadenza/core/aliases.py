"""Model names of other services, and the classes that serve them. Pure.

An alias is a name or a pattern in which `*` stands for any characters. The first one that fits counts, without regard
to case.
"""

from collections.abc import Callable, Container, Mapping
from fnmatch import fnmatchcase

import msgspec

from cadenza.core.records import AUTO, RESERVED_CLASS

NAME_CHARS_MAX = 256
# Of protocols whose clients have model names built in. Their small models come first: "gpt-5-mini" is a "gpt-*" too.
DEFAULT_ALIASES: Mapping[str, str] = {"*-mini*": "mezzo", "*haiku*": "mezzo", "claude-*": "forte", "gpt-*": "forte"}


class Aliases(msgspec.Struct, frozen=True):
    """The operator's aliases; None if the config has none."""

    given: Mapping[str, str] | None = None

    def with_defaults(self) -> "Aliases":
        """For a protocol whose clients have model names built in. The operator's aliases replace these."""
        return self if self.given is not None else Aliases(DEFAULT_ALIASES)

    def resolve(self, asked: str, ids: Container[str], preferred: Callable[[str], str]) -> str:
        """The class that an alias stands for; what is none stays as it is. `preferred` knows which have routes."""
        if not self.given or asked in ids or asked == RESERVED_CLASS or len(asked) > NAME_CHARS_MAX:
            return asked
        name = asked.lower()
        found = (class_id for pattern, class_id in self.given.items() if fnmatchcase(name, pattern.lower()))
        class_id = next(found, asked)
        return class_id if class_id in (asked, AUTO) else preferred(class_id)


NO_ALIASES = Aliases()
