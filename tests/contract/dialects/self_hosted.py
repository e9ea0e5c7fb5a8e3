"""The servers that people run themselves: vLLM, SGLang, llama.cpp, Ollama and TGI."""

from tests.contract.agent import TURNS
from tests.contract.dialects import rules
from tests.contract.dialects.manners import (
    Manner,
    cached_in_details,
    counted,
    each_whole_at_0,
    in_fragments,
    named_in_fragments,
    one_object,
    with_objects,
)
from tests.contract.dialects.twin import TooLong, Twin, broken, error, flat_error
from tests.loopback import Status

VLLM = Twin(
    dialect="vllm",
    rules=(
        rules.only_roles("system", "user", "assistant", "tool"),
        rules.one_system_message,
        rules.tools_rules,
        rules.options_only_with_stream,
    ),
    manner=Manner(
        new_id=lambda n: f"chatcmpl-tool-{n:032x}",
        reasoning="reasoning",
        deltas=named_in_fragments,
        usage_at="each_chunk",
        usage=lambda: cached_in_details(created_cache_tokens=None),
    ),
    wants_reasoning="reasoning",
    refusal=error(400, "System message must be at the beginning.", type="BadRequestError", param=None, code=400),
    too_long=TooLong(
        error(
            400,
            "This model's maximum context length is 8192 tokens. However, you requested 512 output tokens and your "
            "prompt contains at least 7681 input tokens, for a total of at least 8193 tokens. Please reduce the "
            "length of the input prompt or the number of requested output tokens.",
            type="BadRequestError",
            param="input_tokens",
            code=400,
        ),
        8192,
        7681,
    ),
    busy=error(429, "Too many requests", type="TooManyRequests", code=429),
    breaks=broken({"error": {"message": "EngineDeadError", "type": "InternalServerError", "code": 500}}, done=True),
)
SGLANG = Twin(
    dialect="sglang",
    rules=(
        rules.no_nulls("content"),
        rules.no_reasoning_under("reasoning"),
        rules.one_system_message,
        rules.tools_rules,
    ),
    manner=Manner(
        new_id=lambda n: f"functions.name:{n}",
        reasoning="reasoning_content",
        in_each_delta={"role": None, "content": None, "reasoning_content": None, "tool_calls": None},
        usage=lambda: counted(prompt_tokens_details=None, reasoning_tokens=4),
    ),
    wants_reasoning="reasoning_content",
    refusal=flat_error(400, "1 validation error for ChatCompletionRequest", type="BadRequest", code=400),
    too_long=TooLong(
        flat_error(
            400,
            "The input (40000 tokens) is longer than the model's context length (32768 tokens).",
            type="BadRequest",
            code=400,
        ),
        32768,
        40000,
    ),
    busy=flat_error(429, "The request queue is full.", type="TooManyRequests", code=429),
    breaks=broken(
        {"error": {"object": "error", "message": "aborted", "type": "InternalServerError", "param": None, "code": 500}},
        done=True,
    ),
)
LLAMACPP = Twin(
    dialect="llamacpp",
    rules=(rules.no_nulls("content"), rules.no_reasoning_under("reasoning"), rules.choice_is_a_word),
    manner=Manner(
        new_id=lambda n: f"UpLlama{n:025d}",
        reasoning="reasoning_content",
        deltas=in_fragments,
        first=(b":\n\n",),
    ),
    wants_reasoning="reasoning_content",
    refusal=error(
        500,
        "Failed to parse messages: [json.exception.type_error.302] type must be string, but is null",
        code=500,
        type="server_error",
    ),
    too_long=TooLong(
        error(
            400,
            "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
            code=400,
            type="exceed_context_size_error",
            n_prompt_tokens=9000,
            n_ctx=8192,
        ),
        8192,
        9000,
    ),
    busy=error(429, "no slot is free", code=429, type="unavailable_error"),
    breaks=broken({"error": {"code": 500, "message": "Compute error.", "type": "server_error"}}),
)
OLLAMA = Twin(
    dialect="ollama",
    rules=(
        rules.text_content,
        rules.no_fields("max_completion_tokens"),
        rules.no_reasoning_under("reasoning_content"),
        rules.choice_is_a_word,
    ),
    manner=Manner(
        new_id=lambda n: f"call_up{n:06d}",
        reasoning="reasoning",
        deltas=each_whole_at_0,
        streamed_reason="stop",
        usage=counted,
    ),
    wants_reasoning="reasoning",
    refusal=error(400, "invalid message format", type="invalid_request_error", param=None, code=None),
    too_long=TooLong(
        error(
            400,
            "input length (9001 tokens) exceeds the model's maximum context length (8192 tokens)",
            type="invalid_request_error",
            param=None,
            code=None,
        ),
        8192,
        9001,
    ),
    busy=error(429, "server busy, please try again", type="api_error", param=None, code=None),
    breaks=broken(None),  # its error is lost: the stream just ends
)
TGI = Twin(
    dialect="tgi",
    rules=(
        rules.no_fields("max_completion_tokens", "logit_bias"),
        rules.top_p_below_1,
        rules.stop_is_an_array,
        rules.no_text_beside_calls,
    ),
    manner=Manner(
        new_id=lambda _: "0",
        deltas=one_object,
        calls=with_objects,
        reason="eos_token",
        in_each_delta={"role": "assistant"},
        usage=counted,
        first=(b":\n\n",),
    ),
    turns=tuple(turn[:1] for turn in TURNS),  # it makes one call at a time
    refusal=Status(
        422, b'{"error":"Input validation error: `top_p` must be > 0.0 and < 1.0","error_type":"validation"}'
    ),
    too_long=TooLong(
        Status(
            422,
            b'{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 80125 '
            b'`inputs` tokens and 4096 `max_new_tokens`","error_type":"validation"}',
        ),
        4097,
        80125,
    ),
    busy=Status(429, b'{"error":"Model is overloaded","error_type":"overloaded"}'),
    breaks=broken({"error": {"message": "Request failed during generation", "http_status_code": 422}}, done=True),
)
SELF_HOSTED = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMACPP, "ollama": OLLAMA, "tgi": TGI}
