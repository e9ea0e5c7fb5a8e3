"""Makes the query of a search engine from a conversation.

Pure. A query is one bounded line, and is never empty if the last message has words. A follow-up takes its subject from
earlier messages. A query has no operators of an engine: what the client wrote is text, not a command.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import date

from cadenza.parts.grounding.search.intent.question import (
    WINDOW_CHARS,
    find_question,
    is_follow_up,
    is_question,
    points_back,
)
from cadenza.parts.grounding.search.words import (
    ARTICLES,
    DAYS,
    FILLER_PREFIXES,
    FILLER_SUFFIXES,
    FUNCTION_WORDS,
    MANNER_WORDS,
    OPENINGS,
    PRONOUNS,
    QUESTION_WORDS,
    UNSPACED_FILLERS,
    WHY_WORDS,
    WORD,
    split_words,
)

CHARS_MAX = 200
WORDS_MAX = 24
LOOK_BACK = 4  # messages before the last one
NAMES_MAX = 3  # taken from the other sentences of a message
SUBJECT_WORDS_MAX = 8
SHORT_WORDS = 3
SENTENCE_WORDS = 14  # a pronoun in a longer question refers to its own message
ASKING_WORDS = QUESTION_WORDS | WHY_WORDS | MANNER_WORDS
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
NAME = re.compile(r"\"[^\"]{2,60}\"|(?<![^\W_])[A-ZÀ-Þ0-9][\w'’.+-]*(?: [A-ZÀ-Þ0-9][\w'’+-]*){0,4}")
PLACE = re.compile(r"(in|of|for|at|from|to|on|near|with|für|von|en|de|à)", re.IGNORECASE)
YEAR = re.compile(r"(?:19|20)\d\d")
UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\\|*~^<>(){}\[\]`;]+"
)
OPERATOR = re.compile(r"(?<=[A-Za-z]):(?=\S)")
LEADING_SIGNS = "-+!:&=@#/?.,–—：，、。"
PHRASE_WORDS_MAX = max(map(len, FILLER_PREFIXES | FILLER_SUFFIXES))
TRAILING_SIGNS = "?!.,:;？！。，：-+&="


def make_query(texts: Sequence[str], today: date) -> str:
    """`texts` are the last user messages, oldest first; the last one is the question."""
    if not texts:
        return ""
    tokens = _own_tokens(texts[-1])
    if len(texts) > 1 and (not _has_content(tokens) or _needs_subject(texts[-1], tokens)):
        tokens = _with_subject(tokens, texts[-1 - LOOK_BACK : -1])
    query = _bounded(_dated(tokens, today))
    return query or _bounded(_any_words(texts[-1]))


def _any_words(message: str) -> list[str]:
    found = WORD.findall(message[:WINDOW_CHARS]) or WORD.findall(message[-WINDOW_CHARS:])
    return [word for word in found if word not in ("http", "https")] or found


def _needs_subject(message: str, tokens: list[str]) -> bool:
    words = split_words(find_question(message).text)
    if len(words) <= SHORT_WORDS and not _names(" ".join(tokens)) and words[:1] and words[0] in ASKING_WORDS:
        return True  # "who scored?", "why?"
    if not is_follow_up(words) and not (points_back(words) and len(words) <= SENTENCE_WORDS):
        return False
    return not points_back(words) or points_back(words[:4]) or not _names(" ".join(tokens))


def _own_tokens(message: str) -> list[str]:
    """The words of the question in a message, as written, without filler."""
    text = find_question(message).text
    sentences = [
        sentence for sentence in SENTENCE_END.split(text.replace("“", '"').replace("”", '"')) if sentence.strip()
    ]
    if not sentences:
        return []
    chosen = _chosen(sentences)
    tokens = _without_filler(" ".join(chosen).split())
    rest = [sentence for sentence in sentences if sentence not in chosen]
    if not _has_content(tokens):
        return _without_filler(" ".join(rest).split()) or tokens
    return tokens + _names_in(rest, tokens)


def _chosen(sentences: list[str]) -> list[str]:
    """The sentences that ask; in a short message without a question, all of them."""
    questions = [sentence for sentence in sentences if sentence.rstrip().endswith(("?", "？"))]
    if questions:
        return questions if sum(len(question.split()) for question in questions) <= WORDS_MAX else questions[-1:]
    if sum(len(sentence.split()) for sentence in sentences) <= WORDS_MAX:
        return sentences
    return next(([sentence] for sentence in sentences if is_question(sentence)), sentences[:1])


def _without_filler(tokens: list[str]) -> list[str]:
    if len(tokens) <= 2 and not "".join(tokens).isascii():
        tokens = _without_unspaced_filler(tokens)
    while length := _prefix_length(tokens):
        tokens = tokens[length:]
    while length := _suffix_length(tokens):
        tokens = tokens[:-length]
    return tokens


def _prefix_length(tokens: list[str]) -> int:
    """How many words at the beginning are filler; articles between them count as filler too."""
    places = [place for place, token in enumerate(tokens[: 2 * PHRASE_WORDS_MAX]) if _plain(token) not in ARTICLES]
    words = [_plain(tokens[place]) for place in places[:PHRASE_WORDS_MAX]]
    longest = next((n for n in range(len(words), 0, -1) if tuple(words[:n]) in FILLER_PREFIXES), 0)
    if longest:
        return places[longest - 1] + 1
    return places[0] if places else 0


def _suffix_length(tokens: list[str]) -> int:
    places = [place for place, token in enumerate(tokens) if _plain(token) not in ARTICLES][-PHRASE_WORDS_MAX:]
    words = [_plain(tokens[place]) for place in places]
    longest = next((n for n in range(len(words), 0, -1) if tuple(words[-n:]) in FILLER_SUFFIXES), 0)
    return len(tokens) - places[-longest] if longest else 0


def _without_unspaced_filler(tokens: list[str]) -> list[str]:
    text = " ".join(tokens)
    for filler in UNSPACED_FILLERS:
        text = text.replace(filler, " ")
    return text.split() or tokens


def _plain(token: str) -> str:
    return token.strip(TRAILING_SIGNS + "'").lower().replace("’", "'")


def _has_content(tokens: Iterable[str]) -> bool:
    return any(plain and plain not in FUNCTION_WORDS for plain in map(_plain, tokens))


def _names(text: str) -> list[str]:
    """Names and quoted phrases, without ordinary words that open a sentence."""
    found = (match.group().rstrip(TRAILING_SIGNS) for match in NAME.finditer(text))
    return [name for name in found if len(name) > 1 and not name.isdecimal() and not _is_little(name)]


def _is_little(name: str) -> bool:
    return _plain(name) in FUNCTION_WORDS or _plain(name) in OPENINGS or (_plain(name),) in FILLER_PREFIXES


def _names_in(sentences: Iterable[str], known: Sequence[str]) -> list[str]:
    """Names in the other sentences of a message: what its question is about. The first word always has a capital."""
    have = {_plain(token) for token in known}
    names = [
        name for sentence in sentences for name in _names(sentence) if " " in name or not sentence.startswith(name)
    ]
    return [
        word for name in list(dict.fromkeys(names))[:NAMES_MAX] for word in name.split() if _plain(word) not in have
    ]


def _with_subject(tokens: list[str], earlier: Sequence[str]) -> list[str]:
    """The words of a follow-up, with the subject that it leaves out."""
    before = list[str]()
    for place in range(len(earlier) - 1, -1, -1):
        before = _own_tokens(earlier[place])
        if not is_follow_up(split_words(find_question(earlier[place]).text)) and _has_content(before):
            before = before if place == len(earlier) - 1 else _merged(earlier[place:], before)
            break
    if not _has_content(tokens):
        return before or tokens
    if _plain(tokens[0]) in ASKING_WORDS or any(_plain(token) in PRONOUNS for token in tokens):
        kept = [token for token in tokens if _plain(token) not in PRONOUNS]
        return kept + _subject(before, kept)
    return _replaced(before, tokens)


def _merged(messages: Sequence[str], tokens: list[str]) -> list[str]:
    """A question with its follow-ups, each in the place of what it replaces."""
    for message in messages[1:]:
        own = _own_tokens(message)
        if _has_content(own) and not any(_plain(token) in PRONOUNS for token in own):
            tokens = _replaced(tokens, own)
    return tokens


def _subject(before: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names in an earlier question; its other words if it has no name."""
    text = " ".join(token.strip(TRAILING_SIGNS) for token in before)
    have = {_plain(token) for token in known}
    names = [word for name in _names(text) for word in name.split()]
    words = names or [token for token in before if not _is_little(token)]
    return [word for word in words if _plain(word) not in have][:SUBJECT_WORDS_MAX]


def _replaced(before: list[str], tokens: list[str]) -> list[str]:
    """An earlier question in which a day, a year or the last place or name is replaced by that of the follow-up."""
    before = [*before[:-1], before[-1].rstrip(TRAILING_SIGNS)] if before else []
    first = _plain(tokens[0])
    for kind in (DAYS.__contains__, YEAR.fullmatch):
        if kind(_plain(tokens[-1])):
            kept = [token for token in before if not kind(_plain(token))]
            if kept and len(kept) < len(before) and PLACE.fullmatch(kept[-1]):
                kept = kept[:-1]
            return kept + tokens
    same = [
        place
        for place, token in enumerate(before)
        if PLACE.fullmatch(token) and (token.lower() == first or not PLACE.fullmatch(first))
    ]
    if same and len(tokens) <= 4:
        cut = same[-1] + (0 if PLACE.fullmatch(first) else 1)
        return before[:cut] + tokens
    return before + tokens if len(tokens) <= 4 else tokens + _subject(before, tokens)


def _dated(tokens: list[str], today: date) -> list[str]:
    """With "this year", "last year" and "this month" as dates."""
    years = {"this": today.year, "last": today.year - 1, "next": today.year + 1}
    found = list[str]()
    for token in tokens:
        if _plain(token) == "year" and found and found[-1].lower() in years:
            found[-1] = str(years[found[-1].lower()])
        elif _plain(token) == "month" and found and found[-1].lower() == "this":
            found[-1] = f"{today:%B} {today.year}"
        else:
            found.append(token)
    return found


def _bounded(tokens: Sequence[str]) -> str:
    """One line of at most 24 words and 200 characters, without operators, with balanced quotes."""
    text = OPERATOR.sub(" ", UNSAFE.sub(" ", " ".join(tokens)))
    words = list[str]()
    left = CHARS_MAX
    for raw in text.split():
        word = raw.lstrip(LEADING_SIGNS).rstrip(TRAILING_SIGNS)
        word = word.lower() if word in ("AND", "OR", "NOT", "NEAR") else word
        if not word:
            continue
        if len(words) == WORDS_MAX or (words and len(word) > left):
            break
        words.append(word[:left])
        left -= len(word) + 1
    return _balanced(" ".join(words))


def _balanced(text: str) -> str:
    if text.count('"') % 2 == 0 and '""' not in text:
        return text
    words = (word.lstrip(LEADING_SIGNS) for word in text.replace('"', " ").split())
    return " ".join(filter(None, words))
