"""Where content can be in requests of these protocols, for the retention audit: templates of bodies, by the place."""

from cadenza.parts.retention.canaries import TEXT, WORD, Template
from cadenza.parts.retention.case import FILLER, HELLO, SCHEMA, CaseStep, Fields, PartAudit, chat


def message(content: Template = "Hello.", **fields: Template) -> Fields:
    """A request to the Messages API."""
    return {"model": "auto", "max_tokens": 50, "messages": [{**HELLO, "content": content}], **fields}


def response(items: Template = "Hello.", **fields: Template) -> Fields:
    """A request to the Responses API."""
    return {"model": "auto", "max_output_tokens": 50, "input": items, **fields}


USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": WORD, "input": {WORD: TEXT}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": TEXT}]}
THOUGHT = {"role": "assistant", "content": [{"type": "thinking", "thinking": TEXT, "signature": WORD}]}
MESSAGE_BODIES = {
    "user message": message(TEXT),
    "large user message": message(TEXT + FILLER + TEXT),
    "system": message(system=TEXT),
    "thinking": message(messages=[HELLO, THOUGHT, HELLO]),
    "tool": message(tools=[{"name": "look_up", "description": TEXT, "input_schema": SCHEMA}]),
    "call and result": message(messages=[HELLO, USED, RESULT]),
    "image": message([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": WORD}}]),
    "document": message([{"type": "document", "title": TEXT, "source": {"type": "text", "data": TEXT}}]),
    "stop_sequences": message(stop_sequences=[WORD]),
    "type of a tool": message(tools=[{"type": WORD, "name": TEXT}]),
    "type of a block": message([{"type": WORD, WORD: TEXT}]),
    "role": message(messages=[{"role": WORD, "content": TEXT}]),
    "metadata": message(metadata={WORD: TEXT}),
    "unknown field": message(**{WORD: TEXT}),
    "max_tokens of a wrong type": message(max_tokens=TEXT),
    "model": message(model=WORD),
}
FUNCTION = {"type": "function", "name": WORD, "description": TEXT, "parameters": SCHEMA}
CALL = {"type": "function_call", "call_id": "call_1", "name": WORD, "arguments": '{"text": "{word}"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": TEXT}
REASONING = {"type": "reasoning", "id": WORD, "summary": [], "content": [{"type": "reasoning_text", "text": TEXT}]}
RESPONSE_BODIES = {
    "input": response(TEXT),
    "large input": response(TEXT + FILLER + TEXT),
    "instructions": response(instructions=TEXT),
    "message": response([{**HELLO, "id": WORD, "content": [{"type": "input_text", "text": TEXT}]}]),
    "reasoning": response([HELLO, REASONING, {"role": "assistant", "content": TEXT}, HELLO]),
    "encrypted reasoning": response([HELLO, {**REASONING, "encrypted_content": WORD}, HELLO]),
    "tool": response(tools=[FUNCTION]),
    "namespace of tools": response(tools=[{"type": "namespace", "name": WORD, "tools": [FUNCTION]}]),
    "call and output": response([HELLO, CALL, OUTPUT], tools=[FUNCTION]),
    "image": response([{**HELLO, "content": [{"type": "input_image", "image_url": "data:image/png;base64,{word}"}]}]),
    "file": response([{**HELLO, "content": [{"type": "input_file", "filename": WORD, "file_data": TEXT}]}]),
    "form of the text": response(text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}),
    "metadata, user and cache key": response(metadata={WORD: TEXT}, user=TEXT, prompt_cache_key=WORD),
    "include": response(include=[WORD]),
    "unknown field": response(**{WORD: TEXT}),
    "type of a tool": response(tools=[{"type": WORD, "name": TEXT}]),
    "type of an item": response([HELLO, {"type": WORD, WORD: TEXT}]),
    "type of a part": response([{**HELLO, "content": [{"type": WORD, WORD: TEXT}]}]),
    "role": response([{"role": WORD, "content": TEXT}]),
    "output without a call": response([HELLO, {**OUTPUT, "call_id": WORD}]),
    "previous_response_id": response(previous_response_id=WORD),
    "input of a wrong type": response({WORD: TEXT}),
    "max_output_tokens of a wrong type": response(max_output_tokens=TEXT),
    "model": response(model=WORD),
}

DEPLOYMENTS = "POST /openai/deployments"

AUDIT = PartAudit(
    {
        "messages, count: user message": [CaseStep("POST /v1/messages/count_tokens", message(TEXT))],
        "path: deployment": [CaseStep(f"{DEPLOYMENTS}/auto/chat/completions?api-version={WORD}", chat(TEXT))],
        "path: unknown deployment": [CaseStep(f"{DEPLOYMENTS}/{WORD}/chat/completions", chat(TEXT))],
    },
    chats={
        "messages": ("POST /v1/messages", MESSAGE_BODIES),
        "responses": ("POST /v1/responses", RESPONSE_BODIES),
    },
)
