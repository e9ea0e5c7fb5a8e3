"""The services that host models of others: OpenRouter, Together and Groq."""

from tests.contract.dialects import rules
from tests.contract.dialects.manners import Manner, cached_in_details, counted, each_whole, with_objects
from tests.contract.dialects.twin import Twin

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
)
HOSTS = {"openrouter": OPENROUTER, "together": TOGETHER, "groq": GROQ}
