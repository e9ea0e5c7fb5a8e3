"""A stand-in for the program of Inspect: the same options, the same environment, and a log with the same fields.

The task is a JSON file of samples, [id, input, target]. It asks the endpoint without streaming, and scores C if the
answer is the target. The fields of its log are those that inspect-ai 0.3.285 writes and that we read.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["eval"])
    parser.add_argument("task", type=Path)
    for name in ("--model", "--log-dir", "--log-format", "--display", "--max-connections", "--max-retries"):
        parser.add_argument(name, required=True)
    for name in ("--no-fail-on-error", "--no-epochs-reducer"):
        parser.add_argument(name, action="store_true", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--limit", type=int)
    asked = parser.parse_args()
    task = json.loads(asked.task.read_text())
    if task["dies"]:
        sys.stderr.write("the task cannot be loaded\n")
        return 1
    Path.home().joinpath("trace").write_text(json.dumps(task))  # it leaves content in its home
    scorer, samples = task["scorer"], task["samples"][: asked.limit]
    found = [ask(asked.model, scorer, epoch, *one) for epoch in range(1, asked.epochs + 1) for one in samples]
    log = {
        "version": 2,
        "status": "success",
        "eval": {"task": "folder/capitals", "model": asked.model},
        "results": {"headline": {"scorer": "x", "score": scorer, "metric": "accuracy"}},
        "samples": found,
    }
    folder = Path(asked.log_dir)
    folder.mkdir()
    folder.joinpath("2026_capitals.json").write_text(json.dumps(log))
    return 0


def ask(model: str, scorer: str, epoch: int, id_: str, question: str, target: str) -> dict[str, Any]:
    began_s = time.monotonic()
    body = {"model": model.removeprefix("openai-api/cadenza/"), "messages": [{"role": "user", "content": question}]}
    request = urllib.request.Request(
        os.environ["CADENZA_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {os.environ['CADENZA_API_KEY']}"},
    )
    sample: dict[str, Any] = {"id": id_, "epoch": epoch, "input": question, "target": target, "scores": {}}
    try:
        with urllib.request.urlopen(request) as response:
            reply = json.load(response)
    except urllib.error.HTTPError as error:
        return {**sample, "error": {"message": f"Error code: {error.code}", "traceback": ""}, "model_usage": {}}
    answer = reply["choices"][0]["message"]["content"]
    used = reply["usage"]
    return {
        **sample,
        "output": {"completion": answer},
        "scores": {scorer: {"value": "C" if answer == target else "I"}, "other": {"value": 7}},
        "model_usage": {model: {"input_tokens": used["prompt_tokens"], "output_tokens": used["completion_tokens"]}},
        "working_time": time.monotonic() - began_s,
    }


if __name__ == "__main__":
    sys.exit(main())
