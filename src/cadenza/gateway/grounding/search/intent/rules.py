"""The rules of `decision`, in the order in which they are asked: the first one that applies names the reason."""

import re
from collections.abc import Callable
from datetime import date

import msgspec

from cadenza.gateway.grounding.search.intent.phrases import Kind
from cadenza.gateway.grounding.search.intent.word_set import word_set

OPENING_WORDS = 8  # a task is named at the beginning of a message
KEYWORDS_MAX = 9  # a message of so few words may be keywords instead of a sentence
FEW_WORDS = 6
NEAR_DAYS = 45
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
YEAR = re.compile(r"(?<![\w.,-])(?:1\d|20)\d\d(?!\w|[.,]\d)")
SUM = re.compile(r"\d ?[+*^×÷=] ?\d|\d [-/] \d|[a-z] ?\^ ?\d|\d ?% of")
DEFINITION = re.compile(r"\s*what(?:['’]s| is| are) an? ", re.IGNORECASE)
THE_NEW = re.compile(r"\bthe new(?:est)? \w", re.IGNORECASE)
IN_PLACE = re.compile(r"\b(?:in|near|around|at|à|en|of) (?:the )?[A-ZÀ-Ü]|near me|nearby|\bon\W*$")
IN_NAMED = re.compile(r"\b(?:in|on|at|for|to|from|with|by) (?:the )?[A-Z]")
ROLE_OF_NAME = re.compile(r"\b[Ww]ho(?: is|['’]s) the [\w ]{1,40} (?:of|for|at|in) (?:the )?[A-Z]")
IN_NAME = re.compile(r"\b(?:in|at) (?:the )?[A-Z]")
BEST_PLACE = re.compile(r"\bbest (?!way|time|practice|thing)[\w ]{1,40} (?:in|near|around) [A-Z]")
NUMBERED_NAME = re.compile(r"\b[A-Z][A-Za-z]*-?\d[\w-]*|\b\w*[A-Z]\w* \d{1,2}\b(?![\d:%])")
NAME = re.compile(r"(?<=[a-z,] )[A-Z]\w+")
NAMED_VERSION = re.compile(r"\b[A-Za-z]\w* v?\d+\.\d")
MONTHS = "january february march april may june july august september october november december"
MONTH_NUMBERS = {name[:length]: number for number, name in enumerate(MONTHS.split(), 1) for length in (3, len(name))}
FACT_OPENINGS = word_set(
    """
    what whats who whos when whens where which is are does did has have will wer wann wo qui quand quién cuándo quel
    quelle
    """
)
PRESENT_OPENINGS = word_set("how does did has have will can when which")
HOW_MUCH = word_set("many much long old often")
TIMELESS = word_set(
    """
    capital tall deep river rivers mountain mountains planet planets ocean oceans continent plot theme themes
    character characters author wrote written painted invented discovered founded born died death meaning language
    languages flag century empire theorem element symbol chemical novel poem myth god gods bible zones moons legs
    bones organ mammal animal bird species dinosaur letters strings keys universe venus mars jupiter saturn galaxy
    etiquette you protagonist hero villain father mother inventor founder composer painter religion
    """
)
VERSUS = frozenset(("vs", "versus"))
IMPERATIVES = word_set(
    """
    generate name recommend teach suggest create outline plan design describe help brainstorm invent imagine continue
    define discuss analyse analyze simplify expand quiz solve draw pick choose add remove change keep send remind
    nenne erzähl erzähle zeig zeige hilf erstelle mach explícame dame cuéntame ayúdame crea donne-moi raconte aide-moi
    """
)
PAST_OF_OTHERS = word_set("war waren wurde wurden hat starb begann endete était a est mort fue murió nació empezó")
WHO = word_set("who whos wer qui quién guy person")
PAST = word_set("would could was were first former before during ancient ehemalige ancien antiguo")
FIRST_PERSON = word_set("i i'm im i've my we our ich je j'ai yo mein")
WISHES = word_set("need want like wonder wondering require")
STATES = word_set(
    """
    down approved licensed required mandatory banned recommended open closed available alive dead sold-out
    cancelled canceled win won safe legal illegal allowed free
    """
)
NOUNS_IN_ING = word_set(
    """
    during something anything everything nothing morning evening meaning building spring string wedding engineering
    learning programming training boiling melting freezing living opening ending beginning painting marketing
    accounting reading writing spelling feeling difference-making missing interesting
    """
)
OWN = word_set("my our mein meine meinen mon ma mi")
SHOP_WORDS = word_set("supports support includes sell sells carry stock offer offers")
SEARCHES = word_set("search google browse busca cherche")
WRITES_CODE = word_set("write implement refactor fix")
DRAFT = frozenset(("draft",))
WHICH_OR_CAN = frozenset(("which", "can"))
PERFECT = frozenset(("has", "have"))
VERSION_OPENINGS = PRESENT_OPENINGS | {"is", "are"}


def find_years(text: str) -> list[int]:
    return [int(year) for year in YEAR.findall(text)]


class Message(msgspec.Struct, frozen=True):
    """What the rules look at: what the person says, without addresses, and the phrases that are in it."""

    text: str
    words: list[str]
    opening: list[str]  # the words of the clause that asks
    kinds: dict[Kind, list[int]]
    asks: bool
    has_code: bool
    years: list[int]
    today: date

    def has(self, *kinds: Kind) -> bool:
        return not self.kinds.keys().isdisjoint(kinds)

    def opens_with(self, kind: Kind) -> bool:
        places = self.kinds.get(kind)
        return places is not None and places[0] < OPENING_WORDS

    def opening_is(self, words: frozenset[str]) -> bool:
        return bool(self.opening) and self.opening[0] in words

    def may_ask(self) -> bool:
        """Whether it is a question or a few keywords, as people type them into a search engine."""
        return self.asks or len(self.words) <= KEYWORDS_MAX


def is_capability(message: Message) -> bool:
    """Asks whether the assistant can search, not that it should."""
    return message.opens_with(Kind.ASSISTANT) and message.has(Kind.ASK) and len(message.words) <= 5


def is_asked(message: Message) -> bool:
    if message.opening[:2] in (["how", "do"], ["how", "to"], ["how", "can"]):
        return False
    return message.has(Kind.ASK) or message.opening_is(SEARCHES)


def is_creative(message: Message) -> bool:
    if not message.opens_with(Kind.CREATIVE) and not message.opening_is(DRAFT):
        return False
    if message.opening_is(FACT_OPENINGS):
        return False
    only_write = message.words[0] == "write" and len(message.kinds[Kind.CREATIVE]) == 1
    return not (only_write and message.kinds.get(Kind.NEWS, [0])[-1] >= 3)  # "write a summary of the latest …"


def is_code(message: Message) -> bool:
    if not message.has_code and not message.has(Kind.CODE):
        return False
    if message.has(Kind.VERSION) or _asks_about_version(message):
        return message.opening_is(WRITES_CODE)
    fact = message.opening_is(FACT_OPENINGS) or message.opening[:2] == ["how", "much"]
    return message.has_code or not (fact and message.has(Kind.CHANGING, Kind.NEWS, Kind.OFFICE))


def is_maths(message: Message) -> bool:
    if message.has(Kind.NEWS) or _has_two_currencies(message):
        return False
    if message.opens_with(Kind.MATHS) or SUM.search(message.text):
        return True
    numbers = len(NUMBER.findall(message.text))
    return (numbers >= 4 and not IN_NAMED.search(message.text)) or (
        numbers >= 2 and ("%" in message.text or message.words[:1] == ["if"])
    )


def is_chat(message: Message) -> bool:
    if not message.words:
        return True
    if message.has(Kind.NEWS, Kind.CHANGING, Kind.OFFICE, Kind.VERSION) and message.may_ask():
        return False
    if any(place <= 1 for place in message.kinds.get(Kind.CHAT, ())):
        return len(message.words) <= OPENING_WORDS
    return not message.asks and message.words[0] in FIRST_PERSON and not WISHES.intersection(message.words[:4])


def is_about_assistant(message: Message) -> bool:
    if message.asks and message.has(Kind.CHANGING):
        return False
    return message.has(Kind.ASSISTANT) and len(message.words) <= KEYWORDS_MAX


def is_personal(message: Message) -> bool:
    if message.opening_is(WHICH_OR_CAN) and NAME.search(message.text):
        return False
    return message.has(Kind.PERSONAL) and not message.has(Kind.NEWS, Kind.CHANGING, Kind.OFFICE, Kind.VERSION)


def is_settled(message: Message) -> bool:
    """Asks how something works, what a word means, or about the past."""
    if message.words[-1:] in (["mean"], ["means"]) or (
        message.opening[:2] == ["what", "does"] and "mean" in message.words
    ):
        return True
    return not _asks_about_now(message) and (_asks_for_explanation(message) or _asks_about_past(message))


def is_version(message: Message) -> bool:
    return message.may_ask() and (message.has(Kind.VERSION) or _asks_about_version(message))


def is_recent(message: Message) -> bool:
    if message.has(Kind.NEWS) or _is_near(message):
        return message.may_ask()
    if message.opening_is(PERFECT) and message.opening[1:2] not in (["you"], ["i"], ["my"], ["we"]):
        return True
    if message.asks and message.has(Kind.DAY):
        return OWN.isdisjoint(message.words)
    return message.asks and THE_NEW.search(message.text) is not None


def is_changing(message: Message) -> bool:
    if _has_two_currencies(message) or _asks_who_is(message) or _asks_state(message):
        return True
    if message.has(Kind.PLACE) and IN_PLACE.search(message.text) and message.may_ask():
        return True
    if message.has(Kind.CHANGING):
        return message.may_ask() and TIMELESS.isdisjoint(message.words)
    return message.may_ask() and (_asks_when(message) or BEST_PLACE.search(message.text) is not None)


def is_named(message: Message) -> bool:
    """A question about the present of a named person, place or product, but not about what never changes in it."""
    if not TIMELESS.isdisjoint(message.words) or not PAST.isdisjoint(message.opening):
        return False
    named = NAME.search(message.text) is not None
    if not VERSUS.isdisjoint(message.words) and (named or NUMBER.search(message.text)):
        return True
    if not message.asks:
        return named and 2 <= len(message.words) <= FEW_WORDS and message.words[0] not in IMPERATIVES
    return _asks_about_name(message, named=named)


def _asks_about_name(message: Message, *, named: bool) -> bool:
    first, second = (*message.opening[:2], "", "")[:2]
    if (first == "how" and second not in HOW_MUCH) or second in ("did", "you", "we"):
        return False
    if first in ("what", "whats"):
        return IN_NAME.search(message.text) is not None
    if first in ("is", "are", "do", "was"):
        return "or" not in message.words and IN_NAMED.search(message.text) is not None
    return first in PRESENT_OPENINGS and (named or (first != "how" and NUMBERED_NAME.search(message.text) is not None))


def _asks_about_now(message: Message) -> bool:
    if message.has(Kind.NEWS) or _is_near(message):
        return True
    if message.has(Kind.DAY):
        return message.has(Kind.CHANGING) or NAME.search(message.text) is not None
    return "difference" in message.words and NUMBERED_NAME.search(message.text) is not None


def _asks_for_explanation(message: Message) -> bool:
    if message.has(Kind.SETTLED) or DEFINITION.match(message.text) or message.words[-1:] in (["work"], ["works"]):
        return True
    if message.opening[:3] == ["how", "do", "i"] and message.has(Kind.CHANGING):
        return False
    if message.opening[:2] in (["how", "do"], ["how", "does"]):
        return not message.has(Kind.DAY) and not NAME.search(message.text)
    return message.words[:2] == ["what", "is"] and len(message.words) == 3


def _asks_about_past(message: Message) -> bool:
    if message.years:
        return True
    return message.opening_is(FACT_OPENINGS) and not PAST.isdisjoint(message.opening[:4])


def _asks_about_version(message: Message) -> bool:
    is_keywords = not message.asks and len(message.words) <= 6 and not message.has_code
    if not is_keywords and (not message.opening_is(VERSION_OPENINGS) or message.opening[0] == "how"):
        return False
    return NAMED_VERSION.search(message.text) is not None


def _asks_who_is(message: Message) -> bool:
    """Asks who has an office, or who does something now: "who leads", "who is hosting"."""
    who = not WHO.isdisjoint(message.words) or "谁" in message.text or "誰" in message.text
    if message.has(Kind.OFFICE) and who:
        return True
    if message.opening_is(WHO) and ROLE_OF_NAME.search(message.text) and TIMELESS.isdisjoint(message.words):
        return True
    second = message.opening[1] if message.opening[:1] in (["who"], ["whos"]) and len(message.opening) > 2 else ""
    return (
        second == "got"
        or (second.endswith("s") and second not in ("is", "was", "does", "has"))
        or (who and "win" in message.words)
    )


def _asks_when(message: Message) -> bool:
    """Asks when something will be, not when it was."""
    first, second = (*message.opening[:2], "", "")[:2]
    if first == "when":
        return second in ("is", "are", "do", "does", "will", "can")
    return first in ("wann", "quand", "cuándo") and second not in PAST_OF_OTHERS


def _asks_state(message: Message) -> bool:
    """Asks what is so at present: "is it open", "is the band touring", "which shops sell it", "did they win"."""
    words = message.opening
    if not message.opening_is(FACT_OPENINGS) or not OWN.isdisjoint(words):
        return False
    if words[0] in ("is", "are", "did", "which") and not STATES.isdisjoint(words):
        return True
    if not SHOP_WORDS.isdisjoint(words):
        return True
    return words[0] in ("is", "are", "who", "what") and any(
        len(word) > 5 and word.endswith("ing") and word not in NOUNS_IN_ING for word in words[1:4]
    )


def _has_two_currencies(message: Message) -> bool:
    return len({message.words[place] for place in message.kinds.get(Kind.CURRENCY, ())}) >= 2


def _is_near(message: Message) -> bool:
    """Whether the message has a date near today: a year from the last one on, or a day and a month."""
    year = message.today.year
    if any(year - 1 <= named <= year + 3 for named in message.years):
        return True
    return not message.years and any(
        _is_near_day(message, place) for place, word in enumerate(message.words) if word in MONTH_NUMBERS
    )


def _is_near_day(message: Message, place: int) -> bool:
    beside = (*message.words[max(place - 1, 0) : place], *message.words[place + 1 : place + 2])
    days = [int(digits) for word in beside if (digits := word.rstrip("stndrh")).isdecimal() and len(digits) <= 2]
    if not days or not 1 <= days[0] <= 31:
        return False
    named = message.today.replace(month=MONTH_NUMBERS[message.words[place]], day=min(days[0], 28))
    apart = abs((named - message.today).days)
    return min(apart, 365 - apart) <= NEAR_DAYS


Rule = Callable[[Message], bool]
RULES: tuple[tuple[str, Rule], ...] = (
    ("forbidden", lambda message: message.has(Kind.FORBID)),
    ("assistant", is_capability),
    ("translation", lambda message: message.opens_with(Kind.TRANSLATION)),
    ("text", lambda message: message.opens_with(Kind.TEXT)),
    ("asked", is_asked),
    ("creative", is_creative),
    ("code", is_code),
    ("maths", is_maths),
    ("chat", is_chat),
    ("assistant", is_about_assistant),
    ("personal", is_personal),
    ("settled", is_settled),
    ("version", is_version),
    ("recency", is_recent),
    ("changing", is_changing),
    ("named", is_named),
)
