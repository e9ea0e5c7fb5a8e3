"""What each kind of upstream wants to be sent differently: a table, with no code. docs/upstreams.md explains it.

`plain` is what most of them accept. upstreams/writer.py applies a dialect to a request. Replies have no dialect:
upstreams/reader.py reads every known form from every upstream.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from cadenza.core.chat import CACHE_KEY

MESSAGE_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"})  # every upstream knows these
SHORT_ID = ".{1,40}"
INCLUDE_USAGE = MappingProxyType({"include_usage": True})
# A last message of the assistant is continued with these fields; llama.cpp does so without them.
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
ENFORCE = "Use a provider that does, such as the embedded model or OpenRouter, or leave out `by` in the route."


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How requests to one kind of upstream are written. The defaults are those of `plain`."""

    hosts: tuple[str, ...] = ()  # it is recognised by these; one that begins with . or - is an ending
    limit_field: str = "max_tokens"
    stream_options: Mapping[str, bool] = INCLUDE_USAGE  # empty if it refuses the field: then usage comes anyway
    omits: tuple[str, ...] = ()  # fields of a request that it refuses
    takes: tuple[str, ...] = ()  # fields that most refuse: a route of it passes them on without being told to
    renames: Mapping[str, str] = {}  # fields of a request that it knows by another name
    has_full_top_p: bool = True  # whether it accepts a `top_p` of 1
    has_single_stop: bool = True  # whether it accepts a string as `stop`
    adds: Mapping[str, Any] = {}  # fields of every request: the switch for less or no retention, if there is one
    enforces_retention: bool = False  # whether that switch alone makes sure that nothing is retained

    message_fields: frozenset[str] | None = None  # the only ones that it accepts, in calls too; None: ignores others
    has_nulls: bool = True  # whether it accepts null in fields of messages and tools
    null_content: Literal["null", "empty", "omit"] = "null"  # the content of an assistant message without any
    has_text_with_calls: bool = True  # whether it reads both of one message; else the text is left out
    has_parts: bool = True  # whether it takes text as an array of parts; else parts are joined
    reasoning: Literal["as_sent", "reasoning_content", "reasoning", "drop"] = "as_sent"  # of assistant messages
    reasoning_filler: str | None = None  # for assistant messages without reasoning, if it requires some
    call_ids: str | None = None  # the pattern of the ids that it accepts; others are replaced, in calls and answers

    custom_tools: bool = False
    named_choice: bool = True  # whether `tool_choice` can name a function; else only that function is offered
    continues: bool = True  # whether it can continue a last message of the assistant, and what that takes:
    continue_fields: Mapping[str, Any] = {}
    continue_message: Mapping[str, Any] = {}

    key_header: Literal["authorization", "api-key"] = "authorization"
    has_deployments: bool = False  # the path names the model, unless the base address ends in /v1


PLAIN = Dialect(custom_tools=True, continue_fields=CONTINUE)
DIALECTS: Mapping[str, Dialect] = {
    "plain": PLAIN,
    "vllm": Dialect(continue_fields=CONTINUE),
    "sglang": Dialect(has_nulls=False, reasoning="reasoning_content", continue_fields=CONTINUE),
    "llamacpp": Dialect(has_nulls=False, reasoning="reasoning_content", named_choice=False, continue_fields=CONTINUE),
    "ollama": Dialect(hosts=("ollama.com",), has_parts=False, reasoning="reasoning", named_choice=False),
    "tgi": Dialect(
        hosts=(".endpoints.huggingface.cloud",),
        omits=("logit_bias",),
        has_full_top_p=False,
        has_single_stop=False,
        has_text_with_calls=False,
        reasoning="drop",
    ),
    "openai": Dialect(
        hosts=("api.openai.com", ".api.openai.com"),
        limit_field="max_completion_tokens",
        stream_options=INCLUDE_USAGE | {"include_obfuscation": False},
        takes=("verbosity", CACHE_KEY),
        adds={"store": False},  # no stored completion; its logs against abuse are a matter of the contract
        reasoning="drop",
        call_ids=SHORT_ID,
        custom_tools=True,
        continues=False,
    ),
    "azure": Dialect(
        hosts=(".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com", ".openai.azure.us"),
        limit_field="max_completion_tokens",
        reasoning="drop",
        call_ids=SHORT_ID,
        custom_tools=True,
        continues=False,
        key_header="api-key",
        has_deployments=True,
    ),
    "openrouter": Dialect(
        hosts=("openrouter.ai", ".openrouter.ai"),
        takes=("verbosity",),
        adds={"provider": {"zdr": True, "data_collection": "deny"}},
        enforces_retention=True,  # it refuses a request for which it has no endpoint with zero retention
        reasoning="reasoning",
        custom_tools=True,
    ),
    "together": Dialect(hosts=("api.together.ai", "api.together.xyz"), continues=False),
    "groq": Dialect(
        hosts=("api.groq.com",),
        omits=("logit_bias",),
        message_fields=MESSAGE_FIELDS,
        has_nulls=False,
        reasoning="drop",
        continues=False,
    ),
    "mistral": Dialect(
        hosts=(".mistral.ai",),
        stream_options={},
        omits=("logit_bias",),
        renames={"seed": "random_seed"},
        message_fields=MESSAGE_FIELDS,
        has_nulls=False,
        null_content="empty",
        reasoning="drop",
        call_ids="[A-Za-z0-9]{9}",
        continues=False,  # it can, but repeats the text
    ),
    "deepseek": Dialect(
        hosts=("api.deepseek.com",),
        null_content="empty",
        has_parts=False,
        reasoning="reasoning_content",
        reasoning_filler="",
        continue_message={"prefix": True},  # only below the base address https://api.deepseek.com/beta
    ),
    "kimi": Dialect(
        hosts=("api.moonshot.ai", "api.moonshot.cn", "api.kimi.com"),
        takes=(CACHE_KEY,),
        omits=("seed", "logit_bias"),
        has_parts=False,
        reasoning="reasoning_content",
        reasoning_filler=" ",
        continue_message={"partial": True},
    ),
    "anthropic": Dialect(
        hosts=("api.anthropic.com",),
        reasoning="drop",
        call_ids="[A-Za-z0-9_-]+",
        continues=False,
    ),
    "gemini": Dialect(
        hosts=("generativelanguage.googleapis.com", "aiplatform.googleapis.com", "-aiplatform.googleapis.com"),
        omits=("frequency_penalty", "presence_penalty", "seed", "logit_bias"),
        message_fields=MESSAGE_FIELDS | {"extra_content"},  # its signatures
        null_content="omit",
        reasoning="drop",
        continues=False,
    ),
}


def dialect_of(base_url: str) -> str:
    """The name of the dialect that the host speaks; `plain` if it is not known."""
    host = urlsplit(base_url).hostname or ""
    for name, dialect in DIALECTS.items():
        if any(host.endswith(known) if known[0] in ".-" else host == known for known in dialect.hosts):
            return name
    return "plain"
