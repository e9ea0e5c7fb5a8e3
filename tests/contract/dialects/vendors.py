"""The vendors of models: Mistral, DeepSeek, Kimi, Anthropic, Gemini, Azure and OpenAI."""

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
from tests.contract.dialects.twin import MODEL, Twin

API_VERSION = "2024-10-21"
MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id")
SAMPLING = {"seed", "frequency_penalty", "presence_penalty", "logit_bias", "stream_options"}
OPENAI_FIELDS = (rules.CORE_FIELDS - {"max_tokens"}) | SAMPLING | {"max_completion_tokens", "store"}
OPENAI_FIELDS |= {"verbosity", "prompt_cache_key"}


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
)
ANTHROPIC = Twin(
    dialect="anthropic",
    rules=(
        rules.only_roles("system", "user", "assistant", "tool"),
        rules.ids_like("[a-zA-Z0-9_-]+"),
        rules.tools_rules,
    ),
    manner=Manner(new_id=lambda n: f"toolu_{n:024d}", deltas=at_content_blocks, usage=counted),
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
)
GEMINI_WITHOUT_IDS = msgspec.structs.replace(
    GEMINI,
    manner=msgspec.structs.replace(GEMINI.manner, new_id=lambda _: ""),  # as its older versions
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
