"""The vendors of models: Mistral, DeepSeek, Kimi, Anthropic, Gemini, Azure and OpenAI."""

import json

import msgspec

from tests.contract.dialects import rules
from tests.contract.dialects.manners import (
    CACHED_TOKENS,
    Manner,
    all_without_index,
    at_content_blocks,
    cached_in_details,
    counted,
    each_whole,
    signed,
    signed_without_index,
)
from tests.contract.dialects.twin import MODEL, TooLong, Twin, broken, error, flat_error
from tests.loopback import Status, chunk

API_VERSION = "2024-10-21"
MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id")
SAMPLING = {"seed", "frequency_penalty", "presence_penalty", "logit_bias", "stream_options"}
OPENAI_FIELDS = (rules.CORE_FIELDS - {"max_tokens"}) | SAMPLING | {"max_completion_tokens", "store"}
INVALID = {"type": "invalid_request_error", "param": None}


def google_error(status: int, message: str, word: str) -> Status:
    """A list of one error."""
    return Status(status, json.dumps([{"error": {"code": status, "message": message, "status": word}}]).encode())


MISTRAL = Twin(
    dialect="mistral",
    rules=(
        rules.only_fields(rules.CORE_FIELDS | {"random_seed", "frequency_penalty", "presence_penalty"}),
        rules.only_message_fields(*MESSAGE_FIELDS),
        rules.only_roles("system", "user", "assistant", "tool"),
        rules.no_nulls(),
        rules.no_empty_answers,
        rules.ids_like("[a-zA-Z0-9]{9}"),
        rules.tools_rules,
    ),
    manner=Manner(
        new_id=lambda n: f"Mx{n:07d}",
        reasoning="parts",
        deltas=all_without_index,
        usage_at="finish",
        usage=lambda: counted(num_cached_tokens=CACHED_TOKENS),
        finishes_with_delta=True,
    ),
    refusal=flat_error(
        422,
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "x"], "msg": "Extra inputs are not permitted"}]},
        type="invalid_request_error",
        code=None,
    ),
    too_long=TooLong(
        flat_error(
            400,
            "Prompt contains 300000 tokens, too large for model with 131072 maximum context length",
            type="invalid_request_invalid_args",
            code="3051",
        ),
        131072,
        300000,
    ),
    busy=flat_error(429, "Service tier capacity exceeded for this model.", type="rate_limited", code="3505"),
    breaks=broken({"object": "error", "message": "Internal server error", "type": "internal", "code": "3700"}),
)
DEEPSEEK = Twin(
    dialect="deepseek",
    base_path="",
    rules=(
        rules.only_roles("system", "user", "assistant", "tool"),
        rules.content_present,
        rules.text_content,
        rules.reasoning_in_every_answer,
    ),
    manner=Manner(
        new_id=lambda n: f"call_{n}_0123456789abcdef",
        reasoning="reasoning_content",
        deltas=each_whole,
        usage_at="finish",
        usage=lambda: counted(
            prompt_cache_hit_tokens=CACHED_TOKENS,
            prompt_cache_miss_tokens=18,
            completion_tokens_details={"reasoning_tokens": 4},
        ),
        first=(b": keep-alive\n\n", b": keep-alive\n\n"),
        blank_lines=3,
    ),
    wants_reasoning="reasoning_content",
    refusal=Status(
        400,
        b'{"error":{"message":"Failed to deserialize the JSON body into the target type: messages[9]: invalid type: '
        b'sequence, expected a string","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}',
        {"content-type": "application/octet-stream"},
    ),
    too_long=TooLong(
        error(
            400,
            "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in "
            "the messages, 8192 in the completion). Please reduce the length of the messages or completion.",
            code="invalid_request_error",
            **INVALID,
        ),
        131072,
        122942,
    ),
    busy=error(429, "Rate limit reached", type="rate_limit_error", code=None),
    flagged=error(400, "Content Exists Risk", code="invalid_request_error", **INVALID),
    breaks=broken(chunk(finish="insufficient_system_resource")),
)
KIMI = Twin(
    dialect="kimi",
    rules=(
        rules.no_fields("max_completion_tokens", "store", "seed"),
        rules.no_empty_answers,
        rules.text_content,
        rules.reasoning_beside_calls,
        rules.tools_rules,
    ),
    manner=Manner(
        new_id=lambda n: f"functions.get:{n}",
        reasoning="reasoning_content",
        usage_at="choice",
        usage=lambda: counted(cached_tokens=CACHED_TOKENS),
    ),
    wants_reasoning="reasoning_content",
    refusal=error(
        400,
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        type="invalid_request_error",
    ),
    too_long=TooLong(
        error(
            400,
            "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
            type="invalid_request_error",
        ),
        262144,
        269030,
    ),
    busy=error(429, "The engine is currently overloaded", type="engine_overloaded_error"),
    flagged=error(400, "The request was rejected because it was considered high risk", type="content_filter"),
    breaks=broken({"error": {"message": "server error", "type": "server_error"}}),
)
ANTHROPIC = Twin(
    dialect="anthropic",
    rules=(
        rules.only_roles("system", "user", "assistant", "tool"),
        rules.ids_like("[a-zA-Z0-9_-]+"),
        rules.tools_rules,
    ),
    manner=Manner(new_id=lambda n: f"toolu_{n:024d}", deltas=at_content_blocks, usage=counted),
    refusal=error(
        400,
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        code="invalid_request_error",
        **INVALID,
    ),
    too_long=TooLong(
        error(400, "prompt is too long: 211180 tokens > 200000 maximum", code="invalid_request_error", **INVALID),
        200000,
        211180,
    ),
    busy=error(429, "This request would exceed your rate limit", type="rate_limit_error", code="rate_limit_error"),
    breaks=broken({"error": {"type": "overloaded_error", "message": "Overloaded", "code": "overloaded_error"}}),
)
GEMINI = Twin(
    dialect="gemini",
    base_path="/v1beta/openai",
    rules=(
        rules.only_fields(rules.CORE_FIELDS | {"stream_options"}),
        rules.only_message_fields(*MESSAGE_FIELDS, "extra_content"),
        rules.no_null_content,
        rules.tools_rules,
    ),
    manner=Manner(
        new_id=lambda n: f"function-call-{n:019d}",
        deltas=signed_without_index,
        calls=signed,
        streamed_reason="stop",
        usage_at="each_chunk",
        usage=counted,
    ),
    refusal=google_error(
        400,
        'Invalid JSON payload received. Unknown name "seed": Cannot find field.',
        "INVALID_ARGUMENT",
    ),
    too_long=TooLong(
        google_error(
            400,
            "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
            "INVALID_ARGUMENT",
        ),
        1048576,
        1200293,
    ),
    busy=google_error(429, "Resource has been exhausted (e.g. check quota).", "RESOURCE_EXHAUSTED"),
    breaks=broken([{"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}]),
)
GEMINI_WITHOUT_IDS = msgspec.structs.replace(
    GEMINI,
    manner=msgspec.structs.replace(GEMINI.manner, new_id=lambda _: ""),  # as its older versions
)
FILTERED = error(
    400,
    "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
    type=None,
    param="prompt",
    code="content_filter",
    status=400,
    innererror={
        "code": "ResponsibleAIPolicyViolation",
        "content_filter_result": {"hate": {"filtered": False, "severity": "safe"}},
    },
)
AZURE = Twin(
    dialect="azure",
    base_path="/openai",
    path=f"/openai/deployments/{MODEL}/chat/completions?api-version={API_VERSION}",
    provider_toml=f'api_version = "{API_VERSION}"\n',
    key_header="api-key",
    rules=(
        rules.only_fields(OPENAI_FIELDS - {"store"}),
        rules.no_reasoning_under("reasoning_content", "reasoning"),
        rules.ids_like(".{1,40}"),
        rules.tools_rules,
    ),
    manner=Manner(
        first=(
            {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": [{"x": 1}]},
        ),
        last=(
            {
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": None,
                        "content_filter_results": {},
                        "content_filter_offsets": {"check_offset": 0},
                    }
                ]
            },
        ),
    ),
    refusal=error(400, "Unknown parameter: 'x'.", type="invalid_request_error", param="x", code="unknown_parameter"),
    too_long=TooLong(
        error(
            400,
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 192041 tokens. "
            "Please reduce the length of the messages.",
            type="invalid_request_error",
            param="messages",
            code="context_length_exceeded",
        ),
        128000,
        192041,
    ),
    busy=error(
        429,
        "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-08-01-preview have "
        "exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 86400 seconds.",
        code="429",
    ),
    flagged=FILTERED,
    breaks=broken({"error": {"message": "The server had an error.", "type": "server_error", "code": "500"}}),
)
AZURE_V1 = msgspec.structs.replace(AZURE, base_path="/openai/v1", path="", provider_toml="")
OPENAI = Twin(
    dialect="openai",
    rules=(
        rules.only_fields(OPENAI_FIELDS),
        rules.no_reasoning_under("reasoning_content", "reasoning"),
        rules.ids_like(".{1,40}"),
        rules.fields_equal(store=False),
        rules.tools_rules,
    ),
    manner=Manner(usage=lambda: cached_in_details(completion_tokens_details={"reasoning_tokens": 0})),
    refusal=error(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        type="invalid_request_error",
        param="max_tokens",
        code="unsupported_parameter",
    ),
    too_long=TooLong(
        error(
            400,
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 tokens. "
            "Please reduce the length of the messages.",
            type="invalid_request_error",
            param="messages",
            code="context_length_exceeded",
        ),
        272000,
        289650,
    ),
    busy=error(
        429,
        "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 30601. "
        "The input or output tokens must be reduced in order to run successfully.",
        type="tokens",
        param=None,
        code="rate_limit_exceeded",
    ),
    flagged=error(
        400,
        "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
        type="invalid_request_error",
        code="invalid_prompt",
    ),
    breaks=broken({"error": {"message": "The server had an error while processing.", "type": "server_error"}}),
)
VENDORS = {
    "mistral": MISTRAL,
    "deepseek": DEEPSEEK,
    "kimi": KIMI,
    "anthropic": ANTHROPIC,
    "gemini": GEMINI,
    "gemini_without_ids": GEMINI_WITHOUT_IDS,
    "azure": AZURE,
    "azure_v1": AZURE_V1,
    "openai": OPENAI,
}
