"""Suites of other tools become cases: promptfoo's YAML, samples of OpenAI evals, and logged samples of lm-eval.

What has no counterpart here is listed with its place and its reason. A test that loses one of its checks is left out
whole: with fewer checks it would pass answers that it was written to fail. Nothing is executed or fetched: scripts,
files and addresses that an import names are among what is left out.
"""

import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal

import msgspec

from cadenza.core.content import Content
from cadenza.evaluation.suite import CASES_MAX, SuiteError, read_file, read_suite

Source = Literal["promptfoo", "openai-evals", "lm-eval"]
NODES_MAX = 500_000  # of a YAML file with its references followed: an alias may stand for a huge tree
TEXT_CHARS_MAX = 200_000
PLACE = re.compile(r"\{\{-?\s*([\w.]+)\s*-?\}\}")
FILE = "file://"
TAG_CHARS = re.compile(r"[^a-z0-9_-]+")


class LeftOut(Content, msgspec.Struct, frozen=True):
    """Something that could not be converted: where it is, and why."""

    place: str
    reason: str


class Imported(Content, msgspec.Struct, frozen=True):
    """The cases as lines of JSON, and what was left out."""

    lines: tuple[bytes, ...]
    left_out: tuple[LeftOut, ...]


class _Unfit(Exception):
    """This part cannot be converted; the message is the reason."""


def import_suite(path: Path, source: Source | None = None) -> Imported:
    """SuiteError if the file cannot be read at all, or nothing in it can be converted."""
    data = read_file(path)
    source = source or _guess(path, data)
    tag = TAG_CHARS.sub("-", path.name.partition(".")[0].lower()).strip("-")[:40] or "imported"
    readers: dict[Source, Callable[[str, bytes], Iterator[dict[str, Any] | LeftOut]]] = {
        "promptfoo": _read_promptfoo,
        "openai-evals": _read_openai_evals,
        "lm-eval": _read_lm_eval,
    }
    lines, left_out = list[bytes](), list[LeftOut]()
    for found in readers[source](path.name, data):
        if len(lines) + len(left_out) >= CASES_MAX:
            raise SuiteError([f"{path.name}: has more than {CASES_MAX} cases; split it"])
        if isinstance(found, LeftOut):
            left_out.append(found)
            continue
        place = found.pop("place")
        line = msgspec.json.encode({"id": f"{tag}-{len(lines) + 1}", "tags": [tag], **found})
        try:
            read_suite(place, line)
        except SuiteError as error:
            left_out.append(LeftOut(place, error.mistakes[0].partition(": ")[2]))
            continue
        lines.append(line)
    if not lines:
        raise SuiteError([f"{one.place}: {one.reason}" for one in left_out] or [f"{path.name}: has no cases"])
    return Imported(tuple(lines), tuple(left_out))


def _guess(path: Path, data: bytes) -> Source:
    if path.suffix in (".yaml", ".yml"):
        return "promptfoo"
    first = next((line for line in data.splitlines() if line.strip()), b"{}")
    try:
        keys = msgspec.json.decode(first, type=dict[str, Any]).keys()
    except (msgspec.DecodeError, UnicodeDecodeError):
        keys = {}.keys()
    if "ideal" in keys:
        return "openai-evals"
    if "doc" in keys and "arguments" in keys:
        return "lm-eval"
    raise SuiteError([f"{path.name}: its form is not known; name it with --from promptfoo, openai-evals or lm-eval"])


def _read_promptfoo(name: str, data: bytes) -> Iterator[dict[str, Any] | LeftOut]:
    config = _load_yaml(name, data)
    defaults = config.get("defaultTest")
    defaults = defaults if isinstance(defaults, dict) else {}
    prompts, tests = config.get("prompts"), config.get("tests")
    for key in ("scenarios", "redteam"):
        if key in config:
            yield LeftOut(f"{name}: {key}", "scenarios and red teams are not converted")
    if not isinstance(prompts, list | str) or not isinstance(tests, list):
        raise SuiteError([f"{name}: needs `prompts` and a list of `tests`; files that it refers to are not read"])
    prompts = [prompts] if isinstance(prompts, str) else prompts
    for number, test in enumerate(tests, start=1):
        if not isinstance(test, dict):
            yield LeftOut(f"{name}: tests[{number}]", "it refers to a file, which is not read")
            continue
        variables = {**_dict(defaults.get("vars")), **_dict(test.get("vars"))}
        asserts = [*_list(defaults.get("assert")), *_list(test.get("assert"))]
        lists = {key: value for key, value in variables.items() if isinstance(value, list)}
        for at, prompt in enumerate(prompts, start=1):
            for values in product(*lists.values()):
                place = f"{name}: tests[{number}] with prompts[{at}]"
                try:
                    chosen = {**variables, **dict(zip(lists, values, strict=True))}
                    messages = _messages(prompt, chosen)
                    graders = [_promptfoo_grader(one, chosen) for one in asserts]
                    if not graders:
                        raise _Unfit("it has no `assert`, so an answer could not fail")
                    yield {"place": place, "messages": messages, "graders": graders}
                except _Unfit as error:
                    yield LeftOut(place, str(error))


def _load_yaml(name: str, data: bytes) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 import time

    try:
        config = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SuiteError([f"{name}: not YAML: {' '.join(str(error).split())[:300]}"]) from None
    if not isinstance(config, dict):
        raise SuiteError([f"{name}: a promptfoo config is a mapping with `prompts` and `tests`"])
    waiting, nodes = [config], 0
    while waiting:
        value = waiting.pop()
        nodes += 1
        if nodes > NODES_MAX:
            raise SuiteError([f"{name}: has too many values, or an alias that contains itself"])
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return config


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _messages(prompt: object, variables: dict[str, Any]) -> list[Any]:
    """A prompt is a text, or the JSON of messages."""
    raw = prompt.get("raw") if isinstance(prompt, dict) else prompt
    if not isinstance(raw, str) or raw.startswith(FILE) or re.fullmatch(r"\S+\.(?:txt|json|ya?ml|js|py|md)", raw):
        raise _Unfit("the prompt is in a file, which is not read; put its text into `prompts`")
    if raw.lstrip().startswith("["):
        try:
            messages = msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            raise _Unfit("the prompt begins like a JSON array of messages, but is none") from None
        return [_filled(message, variables) for message in messages]
    return [{"role": "user", "content": _fill(raw, variables)}]


def _filled(value: Any, variables: dict[str, Any]) -> Any:  # noqa: ANN401 any JSON
    if isinstance(value, str):
        return _fill(value, variables)
    if isinstance(value, list):
        return [_filled(one, variables) for one in value]
    return {key: _filled(one, variables) for key, one in value.items()} if isinstance(value, dict) else value


def _fill(template: str, variables: dict[str, Any]) -> str:
    def value_of(found: re.Match[str]) -> str:
        value: Any = variables
        for name in found[1].split("."):
            if not isinstance(value, dict) or name not in value:
                raise _Unfit(f"the variable {found[1]!r} is not in `vars`")
            value = value[name]
        if isinstance(value, str) and value.startswith(FILE):
            raise _Unfit(f"the variable {found[1]!r} is in a file, which is not read")
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    if "{%" in template or "{{" in PLACE.sub("", template):
        raise _Unfit("the template has filters or statements; only {{ variable }} is converted")
    text = PLACE.sub(value_of, template)
    if len(text) > TEXT_CHARS_MAX:
        raise _Unfit(f"the text is longer than {TEXT_CHARS_MAX} characters")
    return text


def _promptfoo_grader(check: object, variables: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(check, dict) or not isinstance(check.get("type"), str):
        raise _Unfit("an assert is not a mapping with a `type`")
    kind, value = check["type"], check.get("value")
    if check.get("transform"):
        raise _Unfit(f"the assert {kind!r} has a `transform`, which is a script")
    if isinstance(value, str) and value.startswith(FILE):
        raise _Unfit(f"the value of the assert {kind!r} is in a file, which is not read")
    if kind in SCRIPTS:
        raise _Unfit(f"the assert {kind!r} runs a script, which is not run here; write it as another grader")
    convert = ASSERTS.get(kind)
    if convert is None:
        raise _Unfit(f"the assert {kind!r} has no counterpart")
    filled = _filled(value, variables)
    return convert(filled, [_as_text(one) for one in (filled if isinstance(filled, list) else [filled])])


def _equals(value: object, texts: list[str]) -> dict[str, Any]:
    if isinstance(value, dict | list):
        return {"kind": "json", "equals": value}
    return {"kind": "exact", "texts": texts, "ignore_space": False}


def _contains(match: str, *, ignore_case: bool) -> "Convert":
    return lambda _, texts: {"kind": "contains", "texts": texts, "ignore_case": ignore_case, "match": match}


def _lacks(*, ignore_case: bool) -> "Convert":
    return lambda _, texts: {"kind": "must_not_contain", "texts": texts, "ignore_case": ignore_case}


def _is_json(*, allow_fence: bool) -> "Convert":
    return lambda value, _: {
        "kind": "json",
        **({"schema": value} if isinstance(value, dict) else {}),
        "allow_fence": allow_fence,
    }


Convert = Callable[[Any, list[str]], dict[str, Any]]  # the value of an assert, and the texts in it
SCRIPTS = ("javascript", "python", "ruby", "webhook")
ASSERTS: dict[str, Convert] = {
    "equals": _equals,
    "contains": _contains("all", ignore_case=False),
    "contains-all": _contains("all", ignore_case=False),
    "contains-any": _contains("any", ignore_case=False),
    "icontains": _contains("all", ignore_case=True),
    "icontains-all": _contains("all", ignore_case=True),
    "icontains-any": _contains("any", ignore_case=True),
    "not-contains": _lacks(ignore_case=False),
    "not-contains-any": _lacks(ignore_case=False),
    "not-icontains": _lacks(ignore_case=True),
    "not-icontains-any": _lacks(ignore_case=True),
    "regex": lambda _, texts: {"kind": "regex", "pattern": texts[0]},
    "not-regex": lambda _, texts: {"kind": "regex", "pattern": texts[0], "match": "absent"},
    "starts-with": lambda _, texts: {"kind": "regex", "pattern": "^" + re.escape(texts[0])},
    "is-json": _is_json(allow_fence=False),
    "contains-json": _is_json(allow_fence=True),
    "is-refusal": lambda *_: {"kind": "refusal", "expected": True},
    "not-is-refusal": lambda *_: {"kind": "refusal", "expected": False},
    "llm-rubric": lambda _, texts: {"kind": "rubric", "text": texts[0]},
}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _read_lines(
    name: str, data: bytes, convert: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[dict[str, Any] | LeftOut]:
    """The samples of a JSONL file."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{name}:{number}"
        try:
            sample = msgspec.json.decode(line, type=dict[str, Any])
        except (ValueError, RecursionError):
            yield LeftOut(place, "not a JSON object")
            continue
        try:
            yield {"place": place, **convert(sample)}
        except _Unfit as error:
            yield LeftOut(place, str(error))


def _read_openai_evals(name: str, data: bytes) -> Iterator[dict[str, Any] | LeftOut]:
    return _read_lines(name, data, _openai_case)


def _openai_case(sample: dict[str, Any]) -> dict[str, Any]:
    """`ideal` is one text or several. As the eval `Match` does, an answer passes that begins with one of them.

    Examples in `input` are system messages with a name: they are kept, and the name too.
    """
    asked, ideal = sample.get("input"), sample.get("ideal")
    messages, ideals = ([one] if isinstance(one, str) else one for one in (asked, ideal))
    if not isinstance(messages, list) or not messages:
        raise _Unfit("`input` is neither a text nor a list of messages")
    if not isinstance(ideals, list) or not ideals or not all(isinstance(one, str) and one for one in ideals):
        raise _Unfit("`ideal` is neither a text nor a list of texts; a model graded it, perhaps")
    kept = [one if isinstance(one, dict) else {"role": "user", "content": str(one)} for one in messages]
    pattern = "^(?:" + "|".join(re.escape(one.strip()) for one in ideals) + ")"
    return {"messages": kept, "graders": [{"kind": "regex", "pattern": pattern}]}


def _read_lm_eval(name: str, data: bytes) -> Iterator[dict[str, Any] | LeftOut]:
    seen = set[bytes]()
    for found in _read_lines(name, data, _lm_eval_case):
        if isinstance(found, LeftOut):
            yield found
        elif (key := msgspec.json.encode(found["messages"])) in seen:
            yield LeftOut(found["place"], "the same prompt was converted before: it is logged once for each filter")
        else:
            seen.add(key)
            yield found


def _lm_eval_case(sample: dict[str, Any]) -> dict[str, Any]:
    """The prompt is the first argument of the first request: a text, or the JSON of chat messages."""
    requests = sample.get("arguments")
    first = next(iter(requests.values()), None) if isinstance(requests, dict) else next(iter(_list(requests)), None)
    parts = [*first.values()] if isinstance(first, dict) else first
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
        raise _Unfit("`arguments` has no prompt")
    settings = parts[1] if len(parts) > 1 else {}
    if not isinstance(settings, dict):
        raise _Unfit("it compares likelihoods of given answers, which a chat completion does not tell")
    target = sample.get("target")
    if not isinstance(target, str | int | float) or isinstance(target, bool) or not str(target).strip():
        raise _Unfit("`target` is not a text")
    text = str(target).rpartition("####")[2].strip()  # where reasoning comes before the result
    prompt = parts[0]
    messages: list[Any] = [{"role": "user", "content": prompt}]
    if prompt.lstrip().startswith('[{"role"'):
        try:
            messages = msgspec.json.decode(prompt, type=list[Any])
        except (ValueError, RecursionError):
            raise _Unfit("the prompt begins like JSON of messages, but is none") from None
    grader: dict[str, Any] = {"kind": "exact", "texts": [text], "ignore_case": True, "ignore_punctuation": True}
    if re.fullmatch(r"[-+]?\d[\d,]*(?:\.\d+)?", text):
        grader = {"kind": "number", "value": float(text.replace(",", ""))}
    found: dict[str, Any] = {"messages": messages, "graders": [grader]}
    if isinstance(limit := settings.get("max_gen_toks"), int) and limit > 0:
        found["max_tokens"] = limit
    if stops := [one for one in _list(settings.get("until")) if isinstance(one, str) and one][:4]:
        found["stop"] = stops
    return found
