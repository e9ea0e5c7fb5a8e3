"""Grounding on the embedded default, offline: files in requests, and the real model."""

import base64

import openai
import pytest

from tests.made_files import make_pdf

HEADER = "x-cadenza-grounding"
pytestmark = pytest.mark.release(reason="the real model reads whole documents")


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
