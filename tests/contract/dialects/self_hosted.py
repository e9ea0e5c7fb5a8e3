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
from tests.contract.dialects.twin import Twin

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
)
SELF_HOSTED = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMACPP, "ollama": OLLAMA, "tgi": TGI}
