"""Grounding on the embedded default, offline: documents on this machine, files in requests, and the real model."""

import base64

import openai
import pytest

from tests.cli.program import run_here, wait_until
from tests.embedded.conftest import Account, Started
from tests.raw_client import RawClient, Reply
from tests.unit.grounding.files.made_files import make_pdf

HEADER = "x-cadenza-grounding"
ASKED = [{"role": "user", "content": "How long is parental leave?"}]
FILES = {
    "leave.txt": "Parental leave is 26 weeks. Apply at least three months before, on the form PL-7.",
    "parking.md": "# Parking\n\nVisitors park behind the north gate. The barrier closes at 19:00.",
    "travel.md": "# Travel\n\nTravel costs are refunded within 30 days. Hotels are paid up to 140 dollars a night.",
}
pytestmark = pytest.mark.release(reason="the real model reads whole documents")


@pytest.fixture(scope="module")
def indexed(started: Started, account: Account, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Three documents, indexed beside the running service, which has found the index."""
    folder = tmp_path_factory.mktemp("indexed") / "documents"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    done = run_here(started.folder, "index", str(folder))
    assert "Indexed 3 files, 3 new" in done.stdout + done.stderr
    wire = RawClient(started.server.port, account.key)
    wait_until(lambda: HEADER in wire.chat(messages=ASKED, max_tokens=1).headers, "the index being used")


@pytest.mark.usefixtures("indexed")
def test_an_answer_cites_an_indexed_document(wire: RawClient) -> None:
    """The model gets the passage, the client its source, and the added tokens are counted."""
    bare = wire.post({"messages": ASKED, "max_tokens": 1}, {HEADER: "none"})
    replies = list[Reply]()

    def has_found() -> bool:
        replies.append(wire.chat(messages=ASKED, max_tokens=4, stream=True))
        return HEADER in replies[-1].headers

    wait_until(has_found, "a search that was not late")
    reply = replies[-1]
    assert reply.headers[HEADER] == "search=1"
    assert reply.text
    assert b'"url":"local:documents/leave.txt"' in reply.body
    assert reply.usage["prompt_tokens"] > bare.usage["prompt_tokens"] + 20
    assert HEADER not in bare.headers


@pytest.mark.usefixtures("indexed")
def test_other_questions_are_left_alone(wire: RawClient) -> None:
    """What the documents do not speak of gets no source."""
    reply = wire.chat(messages=[{"role": "user", "content": "What is the capital of France?"}], max_tokens=1)
    assert HEADER not in reply.headers


def test_the_sdk_sends_a_pdf(client: openai.OpenAI) -> None:
    """`openai-python` sends a PDF, and its text is in the prompt that the model counts."""
    pages = ["The office closes at 17:00 on Fridays.", "The canteen is on the second floor."]
    data = base64.b64encode(make_pdf(pages)).decode()
    raw = client.chat.completions.with_raw_response.create(
        model="forte",
        max_tokens=4,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "file", "file": {"filename": "h.pdf", "file_data": f"data:application/pdf;base64,{data}"}},
                    {"type": "text", "text": "When does the office close on Fridays?"},
                ],
            }
        ],
    )
    completion = raw.parse()
    assert raw.headers[HEADER] == "attachments=1"
    assert completion.choices[0].message.content
    assert completion.usage
    assert completion.usage.prompt_tokens > 60
