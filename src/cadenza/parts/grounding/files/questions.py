"""What a message asks of the material: nothing, a few passages, or as much as there is room for.

The lists of words are short on purpose: a message that they do not know is a question about a few passages.
"""

import re

import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.files.ranking import WORD, words_of
from cadenza.parts.grounding.word_set import word_set

FOLLOW_UP_WORDS_MAX = 3
# A message is small talk if it has one of these words, and none that is in neither list.
GREETINGS = word_set("""
    hello hi hey hiya howdy greetings morning afternoon evening night bye goodbye thanks thank thx cheers ok okay
    great cool perfect wonderful awesome nice alright yes no yeah yep nope sure sorry welcome doing going lol wow
    hallo guten danke dank tschüss servus moin bonjour salut merci hola buenos gracias ciao grazie olá obrigado
    obrigada hej tack
    """)
SAID_WITH_GREETINGS = word_set("""
    a again all and are beaucoup day days días everyone fine for friend good got have help how i is it later lot m
    meet morgen much muchas now oh s schön see so tag that the there things this to today too very vielen was well
    works worked you your
    """)
SMALL_TALK = frozenset({"how are you", "what s up", "你好", "您好", "谢谢", "こんにちは", "ありがとう", "안녕하세요"})
# A question with one of these is about all of a document.
WHOLE = word_set("""
    all complete entire every everything overview proofread rewrite summaries summarise summarize summary tldr
    translate translation whole alle alles fasse ganze übersetze übersetzen zusammen zusammenfassung résume résumer
    résumé tous toutes traduire traduis resumen resumir todas todos traduce traducir
    """)
# A question with one of these is about all rows of a table.
OVER_ROWS = word_set("""
    average averages count counts each fewest highest largest least lowest many maximum mean median minimum most per
    smallest sum sums total totals trend
    """)
# A question of these words alone is about the document as such: no passage fits it better than another.
THINGS = word_set("""
    attached attachment content contents csv data doc document file pdf sheet slides spreadsheet table
    """)
SAID_OF_THINGS = word_set("""
    brief describe explain give key main overall page pages paper point points read report say says short show sum
    text up
    """)
IDENTIFIER = re.compile(r"\d")


class AskedOfFiles(Content, msgspec.Struct, frozen=True):
    """What the user wants to know: the last message, and the one before it."""

    text: str
    before: str = ""

    @property
    def words(self) -> list[str]:
        """The words to look for. A follow-up, such as "and in May?", has too few of its own."""
        own = words_of(self.text)
        return words_of(f"{self.before} {self.text}") if len(own) <= FOLLOW_UP_WORDS_MAX and self.before else own

    @property
    def is_about_whole(self) -> bool:
        return not WHOLE.isdisjoint(words_of(self.text))

    @property
    def is_over_rows(self) -> bool:
        return not OVER_ROWS.isdisjoint(words_of(self.text))

    @property
    def names_nothing(self) -> bool:
        """Whether the question is about the document as such: "Summarise the key points", "What is in this file?"."""
        words = set(words_of(self.text))
        return words <= WHOLE | THINGS | SAID_OF_THINGS and not words.isdisjoint(WHOLE | THINGS)


def is_small_talk(text: str) -> bool:
    """Whether a message is a greeting, thanks or the like. It asks for nothing, so nothing is added to it."""
    words = WORD.findall(text.lower())
    if "".join(words) in SMALL_TALK or " ".join(words) in SMALL_TALK:
        return True
    return not GREETINGS.isdisjoint(words) and set(words) <= GREETINGS | SAID_WITH_GREETINGS


def identifiers(words: list[str]) -> list[str]:
    """The words with a digit: numbers, dates and names like C1042."""
    return [word for word in words if IDENTIFIER.search(word)]
