"""The steps of a trial without tools: plain replies, streams, usage, limits, sampling and system messages."""

import msgspec

from cadenza.core.records import Route
from cadenza.core.tokens import is_prompt_believable
from cadenza.upstreams.trial import asks
from cadenza.upstreams.trial.findings import fault_advice
from cadenza.upstreams.trial.session import Answer, Session, prompt_grows

OTHER_FIELD = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
OWN_COUNT = "Cadenza counts the tokens itself, and marks the charge as estimated."


async def try_plain(session: Session) -> None:
    answer = await session.send(asks.counting())
    if answer.is_refused and (again := await _with_other_field(session)).is_accepted:
        answer = again
    if answer.is_accepted:
        session.plain = answer
        session.add("plain", "ok", "answers")
    elif answer.is_refused and (await session.send(asks.counting_without_system())).is_accepted:
        found = "a system message is refused, and every request has one"
        session.add("plain", "fault", found, advice="Choose a model that takes system messages.")
    else:
        assert answer.fault
        session.add("plain", "fault", session.words(answer), advice=fault_advice(answer.fault))


async def _with_other_field(session: Session) -> Answer:
    """The same request with the other name of the token limit, which is kept if it is accepted."""
    variant, refused = _with_field(session.route, OTHER_FIELD[session.limit_field]), session.limit_field
    answer = await session.send(asks.counting(), variant)
    if answer.is_accepted:
        session.route, session.refused_limit_field = variant, refused
    return answer


async def try_limit(session: Session) -> None:
    """Whether the token limit is obeyed. The plain reply tells: its limit is far below what was asked for."""
    assert session.plain
    field, refused, other = session.limit_field, session.refused_limit_field, OTHER_FIELD[session.limit_field]
    if not _exceeds_limit(session.plain):
        is_cut = session.plain.finish_reason == "length"
        found = f"{field} is obeyed" if is_cut else f"{field} is accepted; the reply was short"
        if refused:
            session.add("max_tokens", "warning", f"{refused} is refused, {found}", _field_setting(field))
        else:
            session.add("max_tokens", "ok", found)
        return
    variant = _with_field(session.route, other)
    answer = None if refused else await session.send(asks.counting(), variant)
    if answer and answer.is_accepted and answer.finish_reason == "length" and not _exceeds_limit(answer):
        session.route = variant
        session.add("max_tokens", "warning", f"{field} is ignored, {other} is obeyed", _field_setting(other))
    else:
        found = f"{refused} is refused, {field} is ignored" if refused else f"{field} is ignored"
        advice = "Replies may be longer than clients ask for. Ask the provider."
        session.add("max_tokens", "warning", found, _field_setting(field) if refused else "", advice)


def _exceeds_limit(answer: Answer) -> bool:
    if answer.usage:
        return answer.usage.completion_tokens > asks.LIMIT_TOKENS
    return asks.LAST_NUMBER in answer.text


def _with_field(route: Route, field: str) -> Route:
    return msgspec.structs.replace(route, max_tokens_field=field)


def _field_setting(field: str) -> str:
    return f'max_tokens_field = "{field}"'


async def try_stream(session: Session) -> None:
    ask, setting = asks.counting(stream=True), ""
    answer = await session.send(ask)
    if answer.is_refused and session.dialect.stream_options and not session.is_left_out("stream_options"):
        variant = msgspec.structs.replace(session.route, omit=(*session.route.omit, "stream_options"))
        again = await session.send(ask, variant)
        if again.is_accepted:
            answer, setting = again, session.leave_out("stream_options")
    if not answer.is_accepted:
        assert answer.fault
        session.add("stream", "fault", session.words(answer), advice=fault_advice(answer.fault))
        return
    session.stream = answer
    count = sum(bool(piece.content or piece.extras or piece.calls) for piece in answer.pieces)
    if setting:
        session.add("stream", "warning", "stream_options is refused; streams work without it", setting)
    elif count == 1:
        session.add("stream", "warning", "the whole reply comes at once", advice="Clients see nothing until its end.")
    else:
        session.add("stream", "ok", f"arrives in {count} pieces and ends with a finish reason")


async def judge_usage(session: Session) -> None:
    """Whether the replies so far had token counts that can be true. It sends nothing."""
    assert session.plain
    replies = [("plain replies", session.plain)] + ([("streams", session.stream)] if session.stream else [])
    missing = [name for name, answer in replies if not _has_counts(answer)]
    doubtful = [name for name, answer in replies if _has_counts(answer) and not _is_believable(answer)]
    if missing:
        session.add("usage", "warning", f"no token counts in {' and '.join(missing)}", advice=OWN_COUNT)
    elif doubtful:
        found = f"the token counts of {' and '.join(doubtful)} cannot be true"
        session.add("usage", "warning", found, advice="Ask the provider. Charges are kept within what is possible.")
    else:
        session.add("usage", "ok", f"token counts in {' and '.join(name for name, _ in replies)}")


def _has_counts(answer: Answer) -> bool:
    return answer.usage is not None or any(piece.has_bad_usage for piece in answer.pieces)


def _is_believable(answer: Answer) -> bool:
    """Counts that are valid, not zero, and no more than was sent. try_limit has looked at what was allowed."""
    usage = answer.usage
    if usage is None or not usage.prompt_tokens or (answer.text and not usage.completion_tokens):
        return False
    return is_prompt_believable(usage, asks.prompt_bytes(asks.counting()))


async def try_sampling(session: Session) -> None:
    """All sampling fields at once; if that is refused, one at a time. Without a system message, to compare counts."""
    fields = {name: value for name, value in asks.SAMPLING.items() if not session.is_left_out(name)}
    answer = await _sample(session, fields)
    left_out = [name for name in asks.SAMPLING if name not in fields]
    if answer.is_accepted:
        beside = f"; left out by the config: {', '.join(left_out)}" if left_out else ""
        session.add("sampling", "ok", f"accepted: {', '.join(fields)}{beside}")
        return
    refused = [name for name in fields if not (await _sample(session, {name: fields[name]})).is_accepted]
    if refused:
        verb = "is" if len(refused) == 1 else "are"
        setting = session.leave_out(*refused)
        session.add("sampling", "warning", f"{', '.join(refused)} {verb} refused", setting)
        return
    others = {name: value for name, value in fields.items() if name != "top_p"}
    if others != fields and (await _sample(session, others)).is_accepted:
        found = "top_p is refused together with other sampling fields"
        session.add("sampling", "warning", found, session.leave_out("top_p"))
    else:
        session.add("sampling", "warning", "accepted one by one, but refused together")


async def _sample(session: Session, fields: dict[str, object]) -> Answer:
    answer = await session.send(asks.counting_without_system(fields))
    if answer.is_accepted and not session.bare:
        session.bare = answer
    return answer


async def try_system(session: Session) -> None:
    """Whether the model sees a system message, and a second one: then the prompt has more tokens."""
    is_seen = prompt_grows(session.bare, session.plain)
    first = "a system message is accepted" if is_seen is None else "the model sees a system message"
    answer = await session.send(asks.two_system_messages())
    is_dropped = prompt_grows(session.plain, answer) is False
    if is_seen is False:
        advice = "Characters and clients' instructions may have no effect. Check the model's chat template."
        session.add("system", "warning", "a system message does not make the prompt longer", advice=advice)
    elif answer.is_accepted and not is_dropped:
        two = "two system messages are accepted" if is_seen is None else "the model sees two system messages"
        session.add("system", "ok", f'{two}: system = "each" works')
    else:
        second = "one of two is dropped" if is_dropped else "a second one is refused"
        is_affected = session.route.system == "each"
        setting = 'system = "one"' if is_affected else ""
        session.add("system", "warning" if is_affected else "ok", f"{first}; {second}", setting)
