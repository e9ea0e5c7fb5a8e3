"""Tries a provider's model: one request at a time, each with a time limit and a small token limit.

The requests go through the same code as those of clients, with the dialect and the route of the config. What a step
learns about the route, such as a field that is refused, holds for the steps after it. Without an answer the trial ends.
"""

from collections.abc import Awaitable, Callable

import msgspec

from cadenza.core.records import Route
from cadenza.core.tokens import is_prompt_believable
from cadenza.parts.evaluation.trial import asks
from cadenza.parts.evaluation.trial.session import (
    FindingState,
    Trial,
    TrialFinding,
    TrialReply,
    accepts_call_id,
    omit_setting,
    prompt_grows,
)
from cadenza.upstreams.base import Fault, Upstream

OTHER_FIELD = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
CONTENTS: tuple[tuple[asks.Content, str, str], ...] = (  # of a message with a call, and the dialect that has it
    ("empty", "an empty string", "deepseek"),
    ("omit", "no content", "gemini"),
)
OWN_COUNT = "Cadenza counts the tokens itself, and marks the charge as estimated."


async def try_plain(trial: Trial) -> TrialFinding:
    answer = await trial.send(asks.counting())
    if answer.is_refused and (again := await _with_other_field(trial)).is_accepted:
        answer = again
    if answer.is_accepted:
        trial.plain = answer
        return TrialFinding("ok", "answers")
    if answer.is_refused and (await trial.send(asks.counting_without_system())).is_accepted:
        found = "a system message is refused, and every request has one"
        return TrialFinding("fault", found, advice="Choose a model that takes system messages.")
    assert answer.fault
    return TrialFinding("fault", answer.fault.words, advice=answer.fault.kind.advice)


async def _with_other_field(trial: Trial) -> TrialReply:
    """The same request with the other name of the token limit, which is kept if it is accepted."""
    variant, refused = _with_field(trial.route, OTHER_FIELD[trial.limit_field]), trial.limit_field
    answer = await trial.send(asks.counting(), variant)
    if answer.is_accepted:
        trial.route, trial.refused_limit_field = variant, refused
    return answer


async def try_limit(trial: Trial) -> TrialFinding:
    """Whether the token limit is obeyed. The plain reply tells: its limit is far below what was asked for."""
    assert trial.plain
    field, refused, other = trial.limit_field, trial.refused_limit_field, OTHER_FIELD[trial.limit_field]
    if not _exceeds_limit(trial.plain):
        is_cut = trial.plain.finish_reason == "length"
        found = f"{field} is obeyed" if is_cut else f"{field} is accepted; the reply was short"
        if refused:
            return TrialFinding("warning", f"{refused} is refused, {found}", _field_setting(field))
        return TrialFinding("ok", found)
    variant = _with_field(trial.route, other)
    answer = None if refused else await trial.send(asks.counting(), variant)
    if answer and answer.is_accepted and answer.finish_reason == "length" and not _exceeds_limit(answer):
        trial.route = variant
        return TrialFinding("warning", f"{field} is ignored, {other} is obeyed", _field_setting(other))
    found = f"{refused} is refused, {field} is ignored" if refused else f"{field} is ignored"
    advice = "Replies may be longer than clients ask for. Ask the provider."
    return TrialFinding("warning", found, _field_setting(field) if refused else "", advice)


def _exceeds_limit(answer: TrialReply) -> bool:
    if answer.usage:
        return answer.usage.completion_tokens > asks.LIMIT_TOKENS
    return asks.LAST_NUMBER in answer.text


def _with_field(route: Route, field: str) -> Route:
    return msgspec.structs.replace(route, max_tokens_field=field)


def _field_setting(field: str) -> str:
    return f'max_tokens_field = "{field}"'


async def try_stream(trial: Trial) -> TrialFinding:
    ask, setting = asks.counting(stream=True), ""
    answer = await trial.send(ask)
    if answer.is_refused and trial.dialect.stream_options and not trial.is_left_out("stream_options"):
        again = await trial.send(ask, msgspec.structs.replace(trial.route, omit=(*trial.route.omit, "stream_options")))
        if again.is_accepted:
            answer, setting = again, trial.leave_out("stream_options")
    if not answer.is_accepted:
        assert answer.fault
        return TrialFinding("fault", answer.fault.words, advice=answer.fault.kind.advice)
    trial.stream = answer
    count = sum(bool(piece.content or piece.extras or piece.calls) for piece in answer.pieces)
    if setting:
        return TrialFinding("warning", "stream_options is refused; streams work without it", setting)
    if count == 1:
        return TrialFinding("warning", "the whole reply comes at once", advice="Clients see nothing until its end.")
    return TrialFinding("ok", f"arrives in {count} pieces and ends with a finish reason")


async def judge_usage(trial: Trial) -> TrialFinding:
    """Whether the replies so far had token counts that can be true. It sends nothing."""
    assert trial.plain
    replies = [("plain replies", trial.plain)] + ([("streams", trial.stream)] if trial.stream else [])
    missing = [name for name, answer in replies if not _has_counts(answer)]
    doubtful = [name for name, answer in replies if _has_counts(answer) and not _is_believable(answer)]
    if missing:
        return TrialFinding("warning", f"no token counts in {' and '.join(missing)}", advice=OWN_COUNT)
    if doubtful:
        found = f"the token counts of {' and '.join(doubtful)} cannot be true"
        return TrialFinding("warning", found, advice="Ask the provider. Charges are kept within what is possible.")
    return TrialFinding("ok", f"token counts in {' and '.join(name for name, _ in replies)}")


def _has_counts(answer: TrialReply) -> bool:
    return answer.usage is not None or any(piece.has_bad_usage for piece in answer.pieces)


def _is_believable(answer: TrialReply) -> bool:
    """Counts that are valid, not zero, and no more than was sent. try_limit has looked at what was allowed."""
    usage = answer.usage
    if usage is None or not usage.prompt_tokens or (answer.text and not usage.completion_tokens):
        return False
    return is_prompt_believable(usage, asks.prompt_bytes(asks.counting()))


async def try_sampling(trial: Trial) -> TrialFinding:
    """All sampling fields at once; if that is refused, one at a time. Without a system message, to compare counts."""
    fields = {name: value for name, value in asks.SAMPLING.items() if not trial.is_left_out(name)}
    answer = await _sample(trial, fields)
    left_out = [name for name in asks.SAMPLING if name not in fields]
    if answer.is_accepted:
        beside = f"; left out by the config: {', '.join(left_out)}" if left_out else ""
        return TrialFinding("ok", f"accepted: {', '.join(fields)}{beside}")
    refused = [name for name in fields if not (await _sample(trial, {name: fields[name]})).is_accepted]
    if refused:
        verb = "is" if len(refused) == 1 else "are"
        setting = trial.leave_out(*refused)
        return TrialFinding("warning", f"{', '.join(refused)} {verb} refused", setting)
    others = {name: value for name, value in fields.items() if name != "top_p"}
    if others != fields and (await _sample(trial, others)).is_accepted:
        found = "top_p is refused together with other sampling fields"
        return TrialFinding("warning", found, trial.leave_out("top_p"))
    return TrialFinding("warning", "accepted one by one, but refused together")


async def _sample(trial: Trial, fields: dict[str, object]) -> TrialReply:
    answer = await trial.send(asks.counting_without_system(fields))
    if answer.is_accepted and not trial.bare:
        trial.bare = answer
    return answer


async def try_system(trial: Trial) -> TrialFinding:
    """Whether the model sees a system message, and a second one: then the prompt has more tokens."""
    is_seen = prompt_grows(trial.bare, trial.plain)
    first = "a system message is accepted" if is_seen is None else "the model sees a system message"
    answer = await trial.send(asks.two_system_messages())
    is_dropped = prompt_grows(trial.plain, answer) is False
    if is_seen is False:
        advice = "Characters and clients' instructions may have no effect. Check the model's chat template."
        return TrialFinding("warning", "a system message does not make the prompt longer", advice=advice)
    if answer.is_accepted and not is_dropped:
        two = "two system messages are accepted" if is_seen is None else "the model sees two system messages"
        return TrialFinding("ok", f'{two}: system = "each" works')
    second = "one of two is dropped" if is_dropped else "a second one is refused"
    is_affected = trial.route.system == "each"
    setting = 'system = "one"' if is_affected else ""
    return TrialFinding("warning" if is_affected else "ok", f"{first}; {second}", setting)


async def try_tools(trial: Trial) -> TrialFinding:
    """A call that the model is free to make, streamed if streams work."""
    answer = await trial.send(asks.calling("auto", stream=trial.stream is not None))
    trial.takes_tools = answer.is_accepted
    if not answer.is_accepted:
        advice = "Turn tool calling on at the endpoint, or give these requests another route."
        assert answer.fault
        return TrialFinding("warning", f"a request with tools: {answer.fault.words}", advice=advice)
    if answer.called:
        return TrialFinding("ok", "the model calls a tool")
    if prompt_grows(trial.plain, answer) is False:
        advice = "Tools have no effect. Choose a model whose chat template knows tools."
        return TrialFinding("warning", "accepted, but tools do not make the prompt longer", advice=advice)
    return TrialFinding("ok", "accepted; the model answered in words")


async def try_forced(trial: Trial) -> TrialFinding:
    """A function that is forced by name, without parallel calls."""
    is_left_out, setting = trial.is_left_out("parallel_tool_calls"), ""
    answer = await trial.send(asks.calling(asks.NAMED, parallel=False))
    if not answer.is_accepted and not is_left_out:
        answer = await trial.send(asks.calling(asks.NAMED))
        setting = trial.leave_out("parallel_tool_calls") if answer.is_accepted else ""
    if asks.FUNCTION in answer.called:
        beside = "left out by the config" if is_left_out else "refused" if setting else "accepted"
        found = f"a function that is forced by name is called; parallel_tool_calls is {beside}"
        return TrialFinding("warning" if setting else "ok", found, setting)
    reaction = "refused" if not answer.is_accepted else "not called"
    found = f"a function that is forced by name is {reaction}"
    if trial.dialect.named_choice and (await trial.send(asks.calling("required"))).called:
        found, setting = f'{found}; "required" works', 'dialect = "llamacpp"'
    return TrialFinding("warning", found, setting)


async def try_tool_turn(trial: Trial) -> TrialFinding:
    """The turn after a call, whose message has null as its content. Other upstreams want other forms."""
    if not trial.takes_tools:
        return TrialFinding("ok", "not tried, as tools are refused")
    answer = await trial.send(asks.tool_turn())
    if answer.is_accepted:
        return TrialFinding("ok", "a call with null as its content and its result are accepted")
    for content, words, dialect in CONTENTS if trial.dialect.null_content == "null" else ():
        if await trial.is_accepted(asks.tool_turn(content)):
            found = f"null as the content of a call is refused, {words} is accepted"
            return TrialFinding("warning", found, f'dialect = "{dialect}"')
    if accepts_call_id(trial.dialect) and await trial.is_accepted(asks.tool_turn(call_id=asks.SHORT_CALL_ID)):
        found = f"only call ids of {len(asks.SHORT_CALL_ID)} letters and digits are accepted"
        return TrialFinding("warning", found, 'dialect = "mistral"')
    assert answer.fault
    return TrialFinding("warning", f"a call and its result: {answer.fault.words}")


async def try_reasoning(trial: Trial) -> TrialFinding:
    """Whether replies had reasoning, and whether it may be sent back in the next turn."""
    seen = f"replies have {trial.reasoning_field}" if trial.reasoning_field else "no reasoning in replies"
    if "drop" in (trial.route.reasoning, trial.dialect.reasoning):
        return TrialFinding("ok", f"{seen}; the config does not send it back")
    ask = asks.reasoning_sent_back("reasoning" if trial.reasoning_field == "reasoning" else "reasoning_content")
    if await trial.is_accepted(ask):
        return TrialFinding("ok", f"{seen}; accepted in a next turn")
    if await trial.is_accepted(ask, reasoning="drop"):
        return TrialFinding("warning", f"{seen}; refused in a next turn", 'reasoning = "drop"')
    return TrialFinding("warning", f"{seen}; a next turn is refused even without it")


async def try_continuing(trial: Trial) -> TrialFinding | None:
    """Only for a route that says it can continue an answer which another route began."""
    if not trial.route.continues:
        return None
    answer = await trial.send(asks.continuing())
    if not answer.is_accepted:
        return TrialFinding("warning", "continuing an answer is refused", "continue = false")
    if answer.text.lstrip().startswith(asks.BEGUN[:4]):
        return TrialFinding("warning", "the answer begins again instead of going on", "continue = false")
    return TrialFinding("ok", "an answer that was begun is accepted")


REQUESTS_MAX = 25  # if every optional thing is refused; 8 or 9 if all is well
Step = Callable[[Trial], Awaitable[TrialFinding | None]]
STEPS: tuple[tuple[str, Step], ...] = (
    ("plain", try_plain),
    ("max_tokens", try_limit),
    ("stream", try_stream),
    ("usage", judge_usage),
    ("sampling", try_sampling),
    ("system", try_system),
    ("tools", try_tools),
    ("forced", try_forced),
    ("tool turn", try_tool_turn),
    ("reasoning", try_reasoning),
    ("continue", try_continuing),
)
NECESSARY = ("plain", "stream")


async def try_model(upstream: Upstream, dialect: str, route: Route, limit_s: float) -> list[TrialFinding]:
    """What the model does with every kind of request, and the settings that it needs."""
    trial = Trial(upstream, dialect, route, limit_s)
    await _run(trial, STEPS)
    assert trial.sent <= REQUESTS_MAX
    return [*_with_one_omit(trial), TrialFinding("ok", f"{trial.sent} sent", tried="requests")]


async def try_plain_reply(upstream: Upstream, dialect: str, route: Route, limit_s: float) -> list[TrialFinding]:
    """Only whether the model answers."""
    trial = Trial(upstream, dialect, route, limit_s)
    await _run(trial, STEPS[:1])
    return trial.findings


async def _run(trial: Trial, steps: tuple[tuple[str, Step], ...]) -> None:
    """Take the steps, until a plain request does not work or there is no answer."""
    for name, step in steps:
        try:
            seen = await step(trial)
        except Fault as fault:
            state: FindingState = "fault" if name in NECESSARY else "warning"
            found = f"{fault.words}; the rest was not tried"
            trial.findings.append(TrialFinding(state, found, advice=fault.kind.advice, tried=name))
            return
        if seen:
            trial.findings.append(msgspec.structs.replace(seen, tried=name))
        if not trial.plain:
            return


def _with_one_omit(trial: Trial) -> list[TrialFinding]:
    """The findings, where each line that leaves out fields names all of them: the config can have it only once."""
    complete = omit_setting(trial.route)
    return [
        msgspec.structs.replace(finding, setting=complete) if finding.setting.startswith("omit = ") else finding
        for finding in trial.findings
    ]
