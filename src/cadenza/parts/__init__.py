"""The parts that can be left out: their list, and the record by which each joins. This file imports none of them.

A part is a folder here, with an extra and a page in docs/parts of the same name. Its modules have well-known names,
and `Module` lists them. What the core offers each of them has a type in the core, such as `OpenStore`.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from operator import itemgetter
from types import ModuleType
from typing import Literal

import msgspec

from cadenza.core.errors import ExpectedError

Module = Literal[
    "kind",  # of provider, as `KIND`: what is usual for it
    "settings",  # the tables of the config that it owns
    "run",  # beside the service, from its start to its end
    "open",  # what stands behind an address, a kind of provider or the gate of classes
    "commands",  # of the command line; "ledger close" is its function `ledger_close`
    "pages",  # what it adds to the site, which alone loads it
    "checks",  # what `cadenza doctor` looks at
    "screen",  # its lines when a service starts
    "problems",  # the rules that find what is wrong with it
    "cases",  # its places for content, as `AUDIT`, for the retention audit
    "proof",  # that closed months are unchanged, for `cadenza ledger check --all`
    "contents",  # everything that a server has, for the retention audit
    "move",  # a store from SQLite to this one
]


PAGES = "pages"  # what serves people


class MissingPart(ExpectedError):
    """Something was asked for that belongs to a part which is not installed."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """How a part joins, and whether it is there."""

    name: str
    packages: tuple[str, ...] = ()  # of its extra
    owns: tuple[str, ...] = ()  # the beginnings of what leads to it: "[observe]", "kind embedded", "/v1/messages"
    commands: Mapping[str, str] = {}  # the words of each, and its sentence in the help
    heading: str = ""  # in the help, of its commands of one word
    has: frozenset[Module] = frozenset()
    is_default: bool = False  # it runs without anything of its own in the config

    @property
    def tables(self) -> list[str]:
        """Of the config."""
        return [own.strip("[]") for own in self.owns if own[0] == "["]

    @property
    def is_installed(self) -> bool:
        """Whether its folder and its packages are there."""
        try:
            return all(map(find_spec, (f"{__name__}.{self.name}", *self.packages)))
        except ModuleNotFoundError:  # the package around one of them
            return False

    @property
    def missing(self) -> str:
        """What is said of what needs it, if it is not installed."""
        return f"needs the extra '{self.name}', which is not installed; run: pip install 'cadenza[{self.name}]'"

    @property
    def folder(self) -> Traversable:
        return files(f"{__name__}.{self.name}")

    def require(self) -> None:
        if not self.is_installed:
            raise MissingPart(f"This {self.missing}")

    def load(self, module: Module) -> ModuleType:
        self.require()
        return import_module(f"{__name__}.{self.name}.{module}")


PARTS = (
    Part(
        name="site",
        packages=(
            *(
                "argon2",
                "cryptography",
                "jinja2",
                "latex2mathml",
                "markdown_it",
                "nh3",
                "pygments",
                "segno",
                "starlette",
            ),
            "webauthn",
        ),
        owns=("[platform]", PAGES),
        commands={
            "account create": "Create an account.",
            "account operator": "Make an account an operator's.",
            "account password": "Set the password of an account.",
            "account link": "Print a link that resets the password of an account, verifies its address, or invites to "
            "create one.",
            "token": "Access tokens, with which scripts use the platform API.",
        },
        heading="Accounts and keys",
        has=frozenset({"settings", "run", "commands", "checks", "screen", "cases"}),
        is_default=True,
    ),
    Part(
        name="postgres",
        packages=("asyncpg",),
        owns=("postgresql:", "postgres:"),
        has=frozenset({"open", "contents", "move"}),
    ),
    Part(
        name="valkey",
        packages=("hiredis",),
        owns=("valkey:", "valkeys:", "redis:", "rediss:", "unix:"),
        has=frozenset({"open", "checks", "problems", "contents"}),
    ),
    Part(
        name="protocols",
        owns=("/v1/messages", "/v1/responses", "/openai"),
        has=frozenset({"run", "cases"}),
        is_default=True,
    ),
    Part(
        name="otlp",
        packages=("opentelemetry.proto",),
        owns=("[observe]",),
        has=frozenset({"settings", "run", "cases"}),
    ),
    Part(
        name="grounding",
        packages=("idna", "pypdfium2"),
        owns=("[grounding]",),
        commands={"memory": "Notes that the replies to an account may use."},
        heading="Accounts and keys",
        has=frozenset({"settings", "run", "commands", "pages", "checks", "screen", "problems", "cases"}),
        is_default=True,
    ),
    Part(
        name="embedded",
        owns=("kind embedded",),
        commands={"model": "The embedded model."},
        heading="Models",
        has=frozenset({"kind", "open", "commands"}),
        is_default=True,
    ),
    Part(
        name="mail",
        packages=("aiosmtplib",),
        owns=("[mail]",),
        has=frozenset({"settings", "run", "checks", "problems"}),
    ),
    Part(
        name="payments",
        owns=("[payments]",),
        commands={
            "voucher": "Vouchers: codes that give credit once.",
            "account credit": "Add credit to an account: an amount of dollars, like 5.00.",
            "refund": "Refund a request, or record that a bank transfer was sent back: all of it or a part.",
        },
        heading="Money",
        has=frozenset({"settings", "run", "open", "commands", "pages", "problems"}),
    ),
    Part(
        name="books",
        commands={
            "margin": "Show what requests earned, what providers charge for them, and the difference.",
            "reconcile": "Compare the bill of a provider with our own counts, by day and model.",
            "report": "Show reports over all accounts.",
            "ledger close": "Close a month that is over: nothing in it can change any more.",
            "ledger verify": "Compute the hash of a closed month again.",
        },
        heading="Money",
        has=frozenset({"commands", "pages", "proof", "problems"}),
    ),
    Part(
        name="evaluation",
        packages=("jsonschema_rs",),
        owns=("gate",),
        commands={
            "class evaluate": "Compare a candidate with what serves a class, on a suite of cases.",
            "class suite": "Suites: files of cases with which classes are evaluated.",
        },
        has=frozenset({"open", "commands", "pages", "cases"}),
    ),
    Part(
        name="retention",
        commands={
            "retention": "What stays of the content that was sent.",
            "audit retention": "Send random words as content, in every place where content can be, and search for them "
            "everywhere.",
        },
        heading="Maintain",
        has=frozenset({"commands"}),
    ),
)

TABLES = [table for part in PARTS for table in part.tables]


def find(wanted: str) -> Part | None:
    """The part to which this address, table, path or command belongs: it owns the longest beginning."""
    owned = ((own, part) for part in PARTS for own in (*part.owns, *(f"{words} " for words in part.commands)))
    found = [(len(own), part) for own, part in owned if f"{wanted} ".startswith(own)]
    return max(found, key=itemgetter(0), default=(0, None))[1]


def having(module: Module) -> Iterator[Part]:
    """The parts that are installed and have such a module."""
    return (part for part in PARTS if module in part.has and part.is_installed)
