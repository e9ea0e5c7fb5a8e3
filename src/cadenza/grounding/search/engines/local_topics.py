"""What a question to the local engine is about: the words that count for a passage and against it.

Pure. Empty words do neither: question words, greetings, and what is to be done with the answer ("summarise"). Soft
words help to rank passages, but a passage may lack them: people ask for "the phone number", documents say "Tel."
"""

import re
import string
import unicodedata
from collections.abc import Iterator

import msgspec

from cadenza.grounding.files.ranking import STOP_WORDS, words_of

QUESTION_CHARS_MAX = 4000
PARTS_MAX = 3
PART_WORDS_MIN = 2
WEAK_WORDS = """
    again all also always am anybody anyone anything aren ask before being best better bit both bring call called
    came cannot come comes couldn didn doesn don else ever every everybody everyone everything few find first get
    gets getting give go goes going good got happen happens hasn haven hello help helpful hey hi information isn
    just keep kind know last let like ll long look lot lots made make makes many may maybe mean means might minus
    more most much must name need needs never new next nice now often ok okay old one ones only other out over own
    per plus possible put quick quickly re really said same say says see should shouldn since some somebody someone
    something still such sure take takes thank thanks thing things think times today tomorrow too try under until up
    use used using ve very want wants wasn way well whether while whom whose without won work works wouldn yes
    yesterday yet
"""
TASK_WORDS = """
    according analyse analyze briefly compare comparison compose describe discuss draft elaborate explain
    explanation formulate generate highlight list lists mention mentioned mentions outline overview prepare rephrase
    reword rewrite shortly show simple simply summaries summarise summarised summarize summarized summary tldr
    translate understand write
"""
SOFT_WORDS = """
    address allowed amount amounts brief bullet bullets check company contact contacts contain contains cost costs
    create date dates deadline department description detail details document documents email excerpt extract file
    files folder folders form format guideline guidelines handbook internal key limit limits line lines mail main
    manual mobile note notes number numbers office page paragraph paragraphs phone point points policies policy
    presentation price prices procedure procedures process question questions quote read regulation regulations
    report requirement requirements responsible rule rules search section sections sentence sentences short slide
    slides state stated states step steps table telephone text topic topics translation word words written
"""
EMPTY_WORDS = STOP_WORDS | frozenset((*WEAK_WORDS.split(), *TASK_WORDS.split(), *string.ascii_lowercase))
SOFT = frozenset(SOFT_WORDS.split())
LANGUAGES = "arabic|chinese|danish|dutch|english|finnish|french|german|italian|japanese|norwegian|polish|portuguese"
PHRASES = re.compile(  # these words are empty only together
    rf"\bgood (?:morning|afternoon|evening|night|day)\b|\bin(?:to)? (?:{LANGUAGES}|russian|spanish|swedish|turkish)\b",
    re.IGNORECASE,
)
ENDINGS = "csv|docx?|eml|html?|json|md|pdf|pptx?|rst|rtf|tsv|txt|xlsx?|xml|ya?ml"
FILE_NAME = re.compile(rf"(?<![\w.-])([\w.-]*\w)\.(?:{ENDINGS})\b", re.IGNORECASE)
QUESTION_WORDS = "who|whom|what|when|where|which|why|how|can|do|does|is|are"
NEXT_PART = re.compile(rf"[?!;\n]+|\.\s|[,.] (?:and|or|but) |\b(?:and|or) (?=(?:{QUESTION_WORDS})\b)", re.IGNORECASE)


LIVE_WORDS = frozenset(
    ("weather", "forecast", "news", "headlines", "wetter", "nachrichten", "meteo", "tiempo", "noticias")
)


class Topic(msgspec.Struct, frozen=True):
    """What a question, or a part of it, is about. `words` must be in a passage, for the most part; `soft` may be.

    With `files`, the question names files, in small letters, and passages of these are meant; `words` then rank them.
    """

    words: tuple[str, ...]
    soft: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether it is the weather or the news: a document that mentions them knows nothing of today's.

        Not if other words are the larger part, or if the question is about a document, a rule or the like.
        """
        live = sum(word in LIVE_WORDS for word in self.words)
        return not self.soft and live * 2 >= len(self.words)


def find_topics(query: str) -> Iterator[Topic]:
    """The topic of the question and, if it has a few parts, those of its parts: two files may have the answers.

    The files that the question names come first.
    """
    text = PHRASES.sub(" ", unicodedata.normalize("NFC", query[:QUESTION_CHARS_MAX]))
    files = tuple(dict.fromkeys(found[0].lower() for found in FILE_NAME.finditer(text)))
    names = " ".join(FILE_NAME.findall(text))
    text = FILE_NAME.sub(r"\1", text)  # the endings are not in the index
    whole = _topic(text)
    if files:
        yield Topic(tuple(dict.fromkeys((*words_of(names), *whole.words, *whole.soft))), files=files)
    if not whole.words or (whole.is_live and not files):
        return
    yield whole
    parts = [part for part in map(_topic, NEXT_PART.split(text)) if part.words]
    if 1 < len(parts) <= PARTS_MAX:
        yield from (part for part in parts if len(part.words) >= PART_WORDS_MIN)


def _topic(text: str) -> Topic:
    """Where there are soft words only, they are the topic."""
    words = [word for word in words_of(text) if word not in EMPTY_WORDS]
    topic = tuple(word for word in words if word not in SOFT)
    return Topic(topic, tuple(word for word in words if word in SOFT)) if topic else Topic(tuple(words))
