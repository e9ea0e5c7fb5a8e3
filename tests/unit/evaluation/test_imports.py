"""Suites of other tools become cases; what does not fit is named, with its reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from cadenza.evaluation.imports import Imported, import_suite
from cadenza.evaluation.suite import SuiteError, read_suite

PROMPTFOO = """
description: support answers
providers: [openai:gpt-4.1-mini]
prompts:
  - "Translate to {{ language }}: {{text}}"
  - raw: '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{{text}} in {{language}}"}]'
  - file://prompt.txt
defaultTest:
  assert:
    - {type: not-icontains, value: "as an AI"}
tests:
  - vars: {language: [French, Italian], text: "good day"}
    assert:
      - {type: icontains-any, value: [bonjour, buongiorno]}
  - vars: {language: German, text: "yes"}
    assert:
      - {type: equals, value: "Ja"}
      - {type: regex, value: "^J"}
  - vars: {language: JSON, text: "a list"}
    assert:
      - {type: is-json, value: {type: array}}
  - vars: {language: French, text: "no"}
    assert:
      - {type: javascript, value: "output.length < 10"}
  - vars: {language: French}
    assert: [{type: contains, value: "{{text}}"}]
  - vars: {language: French, text: "no"}
    assert: [{type: similar, value: "non"}]
  - file://more.yaml
"""


def imported(tmp_path: Path, name: str, text: str) -> tuple[Imported, list[dict[str, Any]]]:
    path = tmp_path / name
    path.write_text(text)
    found = import_suite(path)
    read_suite(name, b"\n".join(found.lines))
    return found, [json.loads(line) for line in found.lines]


def test_promptfoo(tmp_path: Path) -> None:
    """Every prompt meets every test, lists of variables are multiplied, and each loss has its reason."""
    found, cases = imported(tmp_path, "promptfooconfig.yaml", PROMPTFOO)
    assert [case["messages"][-1]["content"] for case in cases] == [
        "Translate to French: good day",
        "Translate to Italian: good day",
        "good day in French",
        "good day in Italian",
        "Translate to German: yes",
        "yes in German",
        "Translate to JSON: a list",
        "a list in JSON",
    ]
    assert cases[2]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [grader["kind"] for grader in cases[4]["graders"]] == ["must_not_contain", "exact", "regex"]
    assert cases[6]["graders"][1] == {"kind": "json", "schema": {"type": "array"}, "allow_fence": False}
    reasons = {one.reason for one in found.left_out}
    assert reasons == {
        "the prompt is in a file, which is not read; put its text into `prompts`",
        "the assert 'javascript' runs a script, which is not run here; write it as another grader",
        "the variable 'text' is not in `vars`",
        "the assert 'similar' has no counterpart",
        "it refers to a file, which is not read",
    }
    assert "promptfooconfig.yaml: tests[4] with prompts[1]" in {one.place for one in found.left_out}


def test_openai_evals(tmp_path: Path) -> None:
    """`input` and `ideal` become a case; a sample without an ideal text is named."""
    samples = [
        {"input": [{"role": "system", "content": "One word."}, {"role": "user", "content": "2+2?"}], "ideal": "4"},
        {"input": "Capital of France?", "ideal": ["Paris", "PARIS"]},
        {"input": "x", "ideal": {"a": 1}},
        {"ideal": "x"},
    ]
    found, cases = imported(tmp_path, "arith.jsonl", "\n".join(map(json.dumps, samples)) + "\n{")
    assert [case["graders"] for case in cases] == [
        [{"kind": "regex", "pattern": "^(?:4)"}],
        [{"kind": "regex", "pattern": "^(?:Paris|PARIS)"}],
    ]
    assert [one.place for one in found.left_out] == ["arith.jsonl:3", "arith.jsonl:4", "arith.jsonl:5"]


def test_lm_eval_samples(tmp_path: Path) -> None:
    """Tasks that generate become cases once; multiple choice is named."""
    until = {"until": ["\n\n"], "max_gen_toks": 128}
    generated = {
        "doc_id": 0,
        "doc": {"question": "?"},
        "target": "She has 3 + 4 = 7.\n#### 1,007",
        "arguments": {"gen_args_0": {"arg_0": "Question: how many?\nAnswer:", "arg_1": until}},
        "resps": [["7"]],
        "filtered_resps": ["7"],
        "filter": "strict-match",
    }
    chat = json.dumps([{"role": "user", "content": "Name a colour of snow."}])
    samples = [
        generated,
        generated | {"filter": "flexible-extract"},
        {"doc": {}, "target": "white", "arguments": [[chat, {"until": []}]]},
        {"doc": {}, "target": "0", "arguments": [["The sky is", " blue"], ["The sky is", " red"]]},
    ]
    found, cases = imported(tmp_path, "samples_gsm.jsonl", "\n".join(map(json.dumps, samples)))
    assert cases[0]["graders"] == [{"kind": "number", "value": 1007.0}]
    assert (cases[0]["max_tokens"], cases[0]["stop"]) == (128, ["\n\n"])
    assert cases[1]["messages"] == [{"role": "user", "content": "Name a colour of snow."}]
    assert cases[1]["graders"][0]["kind"] == "exact"
    assert ["likelihoods" in one.reason or "each filter" in one.reason for one in found.left_out] == [True, True]


HOSTILE_YAML = {
    "alias bomb": "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)),
    "cycle": "prompts: &p [*p]\ntests: []",
    "object": "prompts: !!python/object/apply:os.system ['true']",
    "not a mapping": "- 1",
    "broken": "a: [",
    "deep": "[" * 5000,
}


@pytest.mark.slow(reason="files as deep and as large as they may be")
@pytest.mark.parametrize("name", HOSTILE_YAML)
def test_hostile_yaml_is_one_sentence(name: str, tmp_path: Path) -> None:
    """Aliases that multiply, cycles and objects of Python are refused."""
    path = tmp_path / "a.yaml"
    path.write_text(HOSTILE_YAML[name])
    with pytest.raises(SuiteError, match=r"^a.yaml: "):
        import_suite(path)


def test_an_unknown_form_says_what_to_do(tmp_path: Path) -> None:
    """A file whose form cannot be told asks for --from."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": 1}')
    with pytest.raises(SuiteError, match="--from"):
        import_suite(path)
