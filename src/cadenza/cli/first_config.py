"""The work of `cadenza init`: choose an endpoint, a key and a model, show the first answer, write the config.

The config is written to a private folder first and loaded from there, so that what is tried is what a start will read.
Nothing else is written before the model has answered, or before a person has said that it shall be written anyway.
"""

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import click
import msgspec

from cadenza.config import ConfigError, Settings, load_settings
from cadenza.config.build import build_upstreams
from cadenza.config.checks import is_private
from cadenza.config.proxies import proxy_for
from cadenza.config.settings import DEFAULT_PRICES
from cadenza.config.write import Off, write_config
from cadenza.core.config_keys import suggest
from cadenza.core.faults import FaultKind
from cadenza.core.money import TOKENS_PER_PRICE, format_dollars, parse_price
from cadenza.core.records import DEFAULT_CLASS, Timeouts
from cadenza.observe import make_log
from cadenza.terminal.configured import command_to_paste
from cadenza.terminal.console import ask, say
from cadenza.upstreams.base import Ask, Collector, Fault
from cadenza.upstreams.dialects import dialect_of
from cadenza.upstreams.known import HOSTED, LOCAL, ModelPlace, find_servers, list_models, with_models

QUESTION = "Say hello in one short sentence."
ANSWER_TOKENS = 512  # a model that reasons needs some of them before it answers
ANSWER_S = 60.0
MODELS_SHOWN_MAX = 20
KNOWN = {place.name: place for place in (*HOSTED, *LOCAL)}
HEAD = """\
# Written by `cadenza init`. docs/config.md shows every setting.
# `cadenza doctor --try` asks the model for one token.
# The class `forte` also serves `auto`. For `mezzo` and `fortissimo`, add routes of the same form.

"""
OTHER = "another address that speaks the OpenAI format"
NO_TERMINAL = "there is no terminal to ask at; give --provider or --url, --model and --yes"
PRICE = DEFAULT_PRICES[DEFAULT_CLASS]


class InitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    provider: str | None
    url: str | None
    model: str | None
    key_env: str | None
    file: Path
    asks_nothing: bool


class ProviderKey(msgspec.Struct, frozen=True):
    """The key, and the variable that has it; a key that was typed has none."""

    text: str | None = None
    variable: str | None = None


class Chosen(msgspec.Struct, frozen=True):
    """What the config is written from."""

    place: ModelPlace
    key: ProviderKey
    model: str
    cost: tuple[str, str] | None = None  # what the provider charges for a million tokens of prompts and of answers

    @property
    def key_file(self) -> str | None:
        """The name of the file for a key that was typed."""
        return f"{self.place.name}.key" if self.key.text and not self.key.variable else None


def set_up(given: InitOptions) -> None:
    _require_place_to_write(given)
    place = _choose_place(given)
    if place.key_env:
        say(f"Your account at {place.title} must have zero retention: the config will state it.")
    key = _choose_key(given, place)
    place = _with_models(place, key)
    chosen = Chosen(place, key, _choose_model(given, place))
    while fault := _try(chosen):
        words = f"{place.title} does not answer: {fault.words}. {fault.kind.advice}"
        if given.asks_nothing:
            raise ValueError(f"{words} Nothing was written.")
        say(words)
        if fault.kind is FaultKind.UNAUTHORIZED and not key.variable:
            chosen = msgspec.structs.replace(chosen, key=_ask_key(place))
        elif fault.kind is FaultKind.NOT_FOUND and not given.model:
            chosen = msgspec.structs.replace(chosen, model=_choose_model(given, place))
        elif click.confirm("Write the config all the same?", err=True):
            break
        else:
            raise ValueError("nothing was written")
    if not given.asks_nothing:
        chosen = msgspec.structs.replace(chosen, cost=_ask_cost(place))
    _write(given.file, chosen)


def _require_place_to_write(given: InitOptions) -> None:
    if not given.file.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {given.file.absolute().parent}")
    if not given.file.exists() or given.asks_nothing:
        return
    if not sys.stdin.isatty():
        raise ValueError(f"{given.file} exists; --yes overwrites it, and --config writes another file")
    if not click.confirm(f"{given.file} exists. Overwrite it?", err=True):
        raise ValueError(f"{given.file} stays as it is; --config writes another file")


def _choose_place(given: InitOptions) -> ModelPlace:
    if given.url:
        return _place_at(given.url, given.provider)
    if name := given.provider:
        if name not in KNOWN:
            raise ValueError(f"no address is known for '{name}'; give it with --url; {suggest(name, KNOWN)}")
        return KNOWN[name]
    if given.asks_nothing:
        raise ValueError("--yes needs --provider or --url")
    say("Looking for model servers on this machine …")
    found = asyncio.run(find_servers())
    if not found:
        say("None was found.")
    places = [*found, *HOSTED]
    titles = [f"{it.title} at {it.base_url}" if it.models else it.title for it in places]
    number = _choose("Where does the model run?", [*titles, OTHER], "1" if found else None)
    if number < len(places):
        return places[number]
    while True:
        try:
            return _place_at(ask("Its base address, like https://host/v1", NO_TERMINAL), None)
        except ValueError as error:
            if not sys.stdin.isatty():
                raise
            say(f"{error}.")


def _place_at(url: str, name: str | None) -> ModelPlace:
    url = _complete(url.strip().rstrip("/"))
    host = urlsplit(url).hostname
    if not host or not url.startswith(("https://", "http://")):
        raise ValueError("the base address must be like https://host/v1")
    if url.startswith("http://") and not is_private(url):
        raise ValueError("http sends the key and all messages unencrypted; use https")
    name = name or ("local" if is_private(url) else re.sub(r"[^a-z0-9]+", "_", host))
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError("--provider must be a name of letters, digits, - and _")
    if known := KNOWN.get(name):  # behind a proxy, or on another machine
        return msgspec.structs.replace(known, base_url=url, dialect=known.spoken)
    return ModelPlace(name, host, url)


def _complete(url: str) -> str:
    """With what a hurried person leaves out: 127.0.0.1:11434 -> http://127.0.0.1:11434/v1."""
    if "://" in url or not re.match(r"(localhost|[\w-]+(\.[\w-]+)+)(:\d+)?(/|$)", url):
        return url
    url = url if "/" in url else f"{url}/v1"
    return f"http://{url}" if is_private(f"http://{url}") else f"https://{url}"


def _choose_key(given: InitOptions, place: ModelPlace) -> ProviderKey:
    variable = given.key_env or place.key_env
    if variable and (text := os.environ.get(variable, "").strip()):
        say(f"The key is in ${variable}.")
        return ProviderKey(text, variable)
    if given.key_env:
        raise ValueError(f"the environment variable {variable} is unset or empty; put the key into it")
    if place.key_env and given.asks_nothing:
        raise ValueError(f"put the key of {place.title} into {variable}, or name another variable with --key-env")
    if given.asks_nothing or _is_own_server(place):
        return ProviderKey()
    return _ask_key(place)


def _is_own_server(place: ModelPlace) -> bool:
    """Whether it needs no key and costs nothing, as far as its address tells."""
    return not place.key_env and is_private(place.base_url)


def _ask_key(place: ModelPlace) -> ProviderKey:
    optional = "" if place.key_env else ", or nothing if it needs none"
    default = None if place.key_env else ""
    typed = ask(f"The key of {place.title}{optional} (it is not shown)", NO_TERMINAL, default, is_secret=True)
    return ProviderKey(typed.strip() or None)


def _with_models(place: ModelPlace, key: ProviderKey) -> ModelPlace:
    """With the models that it lists. Some providers refuse to list them, and answer all the same."""
    return with_models(place, asyncio.run(list_models(place, key.text, proxy_for(place.base_url, os.environ))))


def _choose_model(given: InitOptions, place: ModelPlace) -> str:
    if given.model:
        return given.model
    if given.asks_nothing:
        if len(place.models) == 1:
            return place.models[0]
        listed = f": {', '.join(place.models[:MODELS_SHOWN_MAX])}" if place.models else ""
        raise ValueError(f"--yes needs --model{listed}")
    shown = place.models[:MODELS_SHOWN_MAX]
    if not shown:
        return ask(f"The name of a model at {place.title}", NO_TERMINAL)
    more = len(place.models) - len(shown)
    title = f"Which model? Type a number or a name{f'; {more} more are not shown' if more else ''}."
    number = _choose(title, shown, "1" if len(shown) == 1 else None, place.models)
    return place.models[number]


def _choose(title: str, options: Sequence[str], default: str | None, names: Sequence[str] = ()) -> int:
    """The index of an option, chosen by its number or, of `names`, by its name."""
    say(f"\n{title}\n")
    for number, option in enumerate(options, 1):
        say(f"  {number:>2}  {option}")
    while True:
        typed = ask("\nNumber" if not names else "\nModel", NO_TERMINAL, default).strip()
        if typed.isdecimal() and 0 < int(typed) <= len(options):
            return int(typed) - 1
        if typed in names:
            return names.index(typed)
        say(f"Type a number from 1 to {len(options)}{' or a name that the provider lists' if names else ''}.")


def _ask_cost(place: ModelPlace) -> tuple[str, str] | None:
    """What the provider charges for a million tokens of prompts and of answers, if somebody knows it."""
    prompts, answers = _per_million(PRICE.input_nano), _per_million(PRICE.output_nano)
    say(f"\nAccounts pay ${prompts} for a million tokens of prompts and ${answers} of answers: see [prices.forte].")
    if _is_own_server(place):
        return None
    say(f"What {place.title} charges you for them is compared with it by `cadenza margin`.")
    for_prompts = _ask_price("prompts")
    for_answers = _ask_price("answers") if for_prompts else None
    return (for_prompts, for_answers) if for_prompts and for_answers else None


def _ask_price(what: str) -> str | None:
    while typed := ask(f"Its dollars for a million tokens of {what}, or nothing if unknown", NO_TERMINAL, "").strip():
        try:
            return _per_million(parse_price(typed.removeprefix("$")))
        except ValueError as error:
            say(f"{error}.")
    return None


def _per_million(price_nano: int) -> str:
    return format_dollars(price_nano * TOKENS_PER_PRICE)


def _try(chosen: Chosen) -> Fault | None:
    """Load the config as a start does, ask for one answer and print it."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "cadenza.toml"
        _write_files(file, chosen)
        try:
            settings = load_settings(str(file), os.environ, Path(folder))
        except ConfigError as error:
            raise ValueError("\n".join(error.problems)) from None
    say(f"Asking {chosen.model}: {QUESTION}")
    try:
        answer = asyncio.run(_first_answer(settings))
    except Fault as fault:
        return fault
    click.echo(answer.strip() or "(an answer without text)")
    return None


async def _first_answer(settings: Settings) -> str:
    given = settings.classes[DEFAULT_CLASS].routes[0]
    route = msgspec.structs.replace(given, timeouts=Timeouts(5.0, ANSWER_S, ANSWER_S, ANSWER_S))
    upstream, answer = build_upstreams(settings, make_log(), [route])[route.provider], Collector()
    messages = [msgspec.Raw(msgspec.json.encode({"role": "user", "content": QUESTION}))]
    try:
        await answer.collect(upstream, route, Ask(messages, {}, ANSWER_TOKENS, stream=True))
    finally:
        await upstream.stop()
    return answer.text


def _write(file: Path, chosen: Chosen) -> None:
    try:
        _write_files(file, chosen)
    except OSError as error:
        raise ValueError(f"{error.filename or file} cannot be written: {error.strerror}") from None
    beside = f", and the key to {chosen.key_file}, which only you can read" if chosen.key_file else ""
    say(f"\nWrote {file}{beside}.\nStart the service: {command_to_paste(file, 'serve')}")


def _write_files(file: Path, chosen: Chosen) -> None:
    if chosen.key_file:
        assert chosen.key.text
        descriptor = os.open(file.with_name(chosen.key_file), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as private:
            os.fchmod(descriptor, 0o600)  # also if it was there before
            private.write(f"{chosen.key.text}\n")
    file.write_text(config_text(chosen))


def config_text(chosen: Chosen) -> str:
    """The config, with the sentence of each setting."""
    place = chosen.place
    provider: dict[str, object] = {"kind": "openai", "base_url": place.base_url}
    if chosen.key.variable:
        provider["api_key_env"] = chosen.key.variable
    elif chosen.key_file:
        provider["api_key_file"] = chosen.key_file
    if place.spoken != dialect_of(place.base_url):
        provider["dialect"] = place.spoken
    provider["retention"] = "zero"
    window = place.windows.get(chosen.model) or Off(128_000)
    route: dict[str, object] = {"provider": place.name, "model": chosen.model, "context_tokens": window}
    if not _is_own_server(place):
        cost = chosen.cost or (Off("0.80"), Off("2.40"))
        route |= dict(zip(("cost_input", "cost_output"), cost, strict=True))
    price = {"input": _per_million(PRICE.input_nano), "output": _per_million(PRICE.output_nano)}
    tables = {
        "providers": {place.name: provider},
        "classes": {DEFAULT_CLASS: {"routes": [route]}},
        "prices": {DEFAULT_CLASS: price},
    }
    return HEAD + write_config(tables)
