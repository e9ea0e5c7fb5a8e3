"""Where the retention audit finds what an evaluation reads."""

import json

from cadenza.core.records import DEFAULT_CLASS
from cadenza.parts.retention.canaries import TEXT, WORD, Canary
from cadenza.parts.retention.case import PartAudit, RetentionFixture
from cadenza.parts.retention.config import MODEL, PROVIDER


async def evaluate(fixture: RetentionFixture, canary: Canary) -> None:
    suite = fixture.service.inputs / "suite.jsonl"
    graders, messages = [{"kind": "contains", "texts": [WORD]}], [{"role": "user", "content": TEXT}]
    suite.write_text(json.dumps(canary.fill({"id": "1", "tags": ["a"], "messages": messages, "graders": graders})))
    options = ("--candidate", f"{PROVIDER}/{MODEL}-2", "--suite", str(suite), "--runs", "1")
    await fixture.service.run("class", "evaluate", DEFAULT_CLASS, *options)


AUDIT = PartAudit({"evaluation: message, answer and grader": evaluate})
