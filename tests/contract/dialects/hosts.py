"""The services that host models of others: OpenRouter, Together and Groq."""

from tests.contract.dialects import rules
from tests.contract.dialects.manners import Manner, cached_in_details, counted, each_whole, with_objects
from tests.contract.dialects.twin import TooLong, Twin, broken, error

GROQ_FIELDS = rules.CORE_FIELDS | {"seed", "frequency_penalty", "presence_penalty", "stream_options"}

OPENROUTER = Twin(
    dialect="openrouter",
    base_path="/api/v1",
    rules=(
        rules.fields_equal(provider={"zdr": True, "data_collection": "deny"}),
        rules.no_reasoning_under("reasoning_content"),
        rules.tools_rules,
    ),
    manner=Manner(
        reasoning="reasoning",
        has_details=True,
        first=(b": OPENROUTER PROCESSING\n\n", b": OPENROUTER PROCESSING\n\n"),
        usage_at="finish",
        usage=lambda: cached_in_details(cost=0.00014, completion_tokens_details={"reasoning_tokens": 4}),
    ),
    wants_reasoning="reasoning",
    refusal=error(
        400,
        "Provider returned error",
        code=400,
        metadata={"raw": '{"error":{"message":"bad"}}', "provider_name": "Crucible"},
    ),
    too_long=TooLong(
        error(
            400,
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 141607 tokens "
            "(10535 of text input, 131072 in the output). Please reduce the length of either one, or use the "
            '"middle-out" transform to compress your prompt automatically.',
            code=400,
            metadata={"provider_name": "Chutes"},
        ),
        131072,
        10535,
    ),
    busy=error(429, "Rate limit exceeded", code=429, metadata={"limit_source": "openrouter"}),
    flagged=error(
        403,
        "Input was flagged",
        code=403,
        metadata={"reasons": ["violence"], "flagged_input": "…", "provider_name": "Acme", "model_slug": "acme/large"},
    ),
    breaks=broken(
        {
            "id": "cmpl-1",
            "object": "chat.completion.chunk",
            "provider": "openai",
            "error": {"code": "server_error", "message": "Provider disconnected unexpectedly"},
            "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
        }
    ),
)
TOGETHER = Twin(
    dialect="together",
    rules=(rules.no_fields("max_completion_tokens", "store"), rules.tools_rules),
    manner=Manner(
        reason="eos",
        reasoning="reasoning",
        in_each_delta={"role": "assistant", "token_id": 7, "function_call": None, "tool_calls": None},
        usage_at="finish",
        usage=counted,
        calls=with_objects,
    ),
    refusal=error(400, "Bad Request", type="invalid_request_error", param=None, code=None),
    too_long=TooLong(
        error(
            400,
            "Failed to start generation: The input token count (1048577) plus the requested output count (512) "
            "exceeds the model's maximum context length (1048576)",
            type="invalid_request_error",
            param=None,
            code=None,
        ),
        1048576,
        1048577,
    ),
    busy=error(429, "You have reached the rate limit", type="rate_limit", param=None, code=None),
    breaks=broken({"error": {"message": "Internal server error", "type": "server_error", "code": None}}),
)
GROQ = Twin(
    dialect="groq",
    base_path="/openai/v1",
    rules=(
        rules.only_fields(GROQ_FIELDS),
        rules.only_message_fields("role", "content", "tool_calls", "tool_call_id"),
        rules.no_nulls("content"),
        rules.tools_rules,
    ),
    manner=Manner(
        new_id=lambda n: f"tk{n:07d}",
        reasoning="reasoning",
        deltas=each_whole,
        usage_at="x_groq",
        usage=lambda: counted(queue_time=0.1, prompt_time=0.2),
    ),
    refusal=error(400, "property 'logit_bias' is unsupported", type="invalid_request_error"),
    too_long=TooLong(
        error(
            400,
            "Please reduce the length of the messages or completion.",
            type="invalid_request_error",
            param="messages",
            code="context_length_exceeded",
        )
    ),
    busy=error(
        413,
        "Request too large for model `llama-3.3-70b-versatile` in organization `org_1` service tier `on_demand` on "
        "tokens per minute (TPM): Limit 12000, Requested 14137, please reduce your message size and try again.",
        type="tokens",
        code="rate_limit_exceeded",
    ),
    breaks=broken(
        {
            "error": {
                "message": "Failed to call a function. See 'failed_generation' for more details.",
                "type": "invalid_request_error",
                "code": "tool_use_failed",
                "failed_generation": "<function",
                "status_code": 400,
            }
        },
        before=b"event: error\n",
    ),
)
HOSTS = {"openrouter": OPENROUTER, "together": TOGETHER, "groq": GROQ}
