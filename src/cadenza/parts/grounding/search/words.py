"""The lists of words and phrases of web search, each named for what it means, and how a message is split into words.

Phrases have no articles, because `split_words` leaves them out. Chinese and Japanese have no spaces between words, so
their phrases are looked for as parts of the text.
"""

import re

from cadenza.parts.grounding.word_set import word_set


def word_list(listed: str) -> tuple[str, ...]:
    return tuple(listed.split())


def phrase_set(listed: str) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(phrase.split()) for phrase in listed.split(","))


def padded_phrases(listed: str) -> tuple[str, ...]:
    """Each phrase between two spaces, as it stands in the words of a message that are joined and padded so."""
    return tuple(f" {' '.join(phrase.split())} " for phrase in listed.split(","))


WORD = re.compile(r"[^\W_]+(?:['’.\-][^\W_]+)*")
UNSPACED_CHARS = "\u3040-\u30ff\u3400-\u9fff"  # of Japanese and Chinese, for a class of a regular expression
ARTICLES = word_set("the a an please pls plz quick quickly bitte mal")

# Words that begin a question. "Wie" and "comment" ask for a manner, but also for much else.
QUESTION_WORDS = word_set("who when where which wer wann wo qui quand où quién cuándo dónde")
SINCE_WORDS = word_set("since until seit depuis desde")
WHY_WORDS = word_set("why how warum pourquoi")
MANNER_WORDS = word_set("wie comment")
QUESTION_MARKS = ("?", "？")
UNSPACED_QUESTION = re.compile(r"多少|什么|哪|几点|怎么|谁|吗|呢|何時|何で|誰|どこ|いつ|いくら|ですか|ますか")
# First words of questions and requests.
OPENINGS = word_set(
    """
    what whats what's who whos who's when whens when's where where's which why how how's whose is are do does did
    has have can could will would should any best was were tell give show list find search look google compare
    summarise summarize explain translate rewrite write make turn extract proofread check describe fix convert use
    here wer wann wo wie welche welcher welches warum wieso ist sind gibt hat kann erkläre fasse übersetze such
    suche qui que quoi quel quelle quels quelles quand où comment combien pourquoi est-ce résume traduis cherche
    explique qué quién quiénes cuándo dónde cómo cuánto cuánta cuál cuáles hay resume traduce busca explica
    """
)

# A message that continues the one before begins with one of these, or has a pronoun.
FOLLOW_UP_OPENERS = phrase_set(
    """
    and, or, also, ok and, okay and, ok but, but, what about, how about, and what about, same for, then,
    und, oder, und was ist mit, was ist mit, wie ist es mit, et, et pour, qu'en est-il, y, y en, y qué tal
    """
)
UNSPACED_FOLLOW_UP_OPENERS = ("那", "那么", "では", "じゃあ", "それ")
PRONOUNS = word_set(
    """
    it its he she his her him they them their theirs there that those this these one ones er sie es sein seine ihr
    ihre dort il elle ils elles son sa ses su sus allí
    """
)

# What the person says about searching itself. Only phrases that leave no doubt are here: "look up" and "find" are left
# to the scorer, because people look up values in tables too.
SEARCH_REQUESTS = padded_phrases(
    """
    search web, search on web, search internet, search on internet, search online, web search, internet search,
    online search, search wikipedia, look it up, look that up, look this up, look online, look on internet, google
    it, google that, google for, google whether, google if, google what, google who, google how, google when, just
    google, can you google, could you google, bing it, browse web, browse internet, check online, check web, check
    internet, check on internet, find online, find on internet, find on web, find out online, use web, use internet,
    go online, research online, verify online, verify that online, verify this online, fact check online, cite your
    sources, give me sources, with links, with sources, such im internet, suche im internet, im internet suchen, im
    internet nach, such im netz, suche im netz, im netz suchen, im netz nach, google nach, googel, googele, googeln,
    recherchier, recherchiere, mit quellen, mit links, cherche sur internet, cherche sur le web, cherche en ligne,
    chercher sur internet, recherche sur internet, rechercher sur internet, recherche sur le web, regarde sur
    internet, vérifie sur internet, trouve sur internet, avec sources, avec des sources, avec des liens, busca en
    internet, busca en la web, busca en línea, busca en google, buscar en internet, búscalo, búscame, consulta en
    internet, con fuentes, con enlaces, googlea, cerca su internet, cerca online, pesquisa na internet, zoek op
    internet, zoek online
    """
)
SEARCH_REFUSALS = padded_phrases(
    """
    don't search, do not search, dont search, don't google, do not google, dont google, don't look it up, don't look
    this up, don't look that up, don't look anything up, don't look up, do not look it up, do not look up, do not
    look anything up, dont look it up, dont look anything up, dont look up, don't look online, don't go online,
    don't browse, do not browse, dont browse, don't use web, don't use internet, do not use internet, do not use
    web, without searching, without search, without web search, without googling, without looking it up, without
    looking anything up, without internet, without using internet, without web, without browsing, no web search, no
    internet search, no searching, no googling, no browsing, no internet just, no web just, just from memory, from
    your memory, from memory only, only from memory, answer from memory, offline answer, ohne internet, ohne suche,
    ohne websuche, ohne zu suchen, ohne zu googeln, nicht suchen, nicht googeln, nicht im internet, such nicht,
    suche nicht, aus dem gedächtnis, sans internet, sans chercher, sans rechercher, sans recherche, sans aller sur
    internet, ne cherche pas, ne recherche pas, sin internet, sin buscar, no busques, sin buscarlo, senza cercare,
    senza internet, sem pesquisar, sem internet, zonder internet, zonder te zoeken
    """
)
UNSPACED_SEARCH_REQUESTS = word_list(
    """
    上网查 上网搜 上网找 网上查 网上搜 网上找 搜索一下 百度一下 谷歌一下
    ネットで調べ ネットで検索 ウェブで検索 検索して ググって
    """
)
UNSPACED_SEARCH_REFUSALS = word_list(
    """
    不要搜索 别搜索 不要上网 别上网 不用搜索 不要查 検索しないで 検索せずに 調べずに 調べないで ネットを使わず
    """
)

# Words that a query does not need: politeness, requests to search, and function words.
FILLER_PREFIXES = phrase_set(
    """
    hi, hello, hey, hey there, good morning, ok, okay, ok so, so, well, um, now, also, and, but, or, please, pls, plz,
    quick question, can you, could you, would you, will you, can u, could u, can you please, could you please,
    i want you to, i'd like you to, are you able to, tell me, tell me about, let me know, give me, show me, find me,
    get me, help me find, find out, find, explain to me, do you know, do you happen to know, any idea, i want to know,
    i'd like to know, i would like to know, i need to know, i need, i wonder, i was wondering, i'm wondering,
    wondering, just wondering, i am looking for, i'm looking for, i think you're out of date, i think you are wrong,
    try again, and try again, search, search for, search web for, search web, search on web for, search internet for,
    search internet, search online for, search online, do web search, do web search for, do search for, do search on,
    web search, web search for, run web search for, look up, look up online, look online for, look online, look it up,
    look that up, google, google for, google it, browse web, browse web for, browse internet for, browse internet,
    browse for, check online, check online for, check web, check web for, check internet, check on internet,
    find online, find on internet, use web to find, use internet to find, use web, go online and find, using web,
    using internet, on internet, on web, online, give me citation for, citation for, give me source for,
    some sources on, sources on, sources for, links about, if, whether, for me, me, about, for, what is, what's,
    whats, what are, what're, what about, how about, what does wikipedia say about, according to wikipedia,
    recherchier, recherchiere, such im internet nach, suche im internet nach, such im internet, suche im internet,
    such im netz nach, suche im netz nach, such, suche, such nach, suche nach, google mal, kannst du, kannst du mir,
    könntest du, kannst du mir sagen, sag mir, weißt du, bitte, mal, und, was ist, was sind, was ist mit,
    wie ist es mit, ich möchte wissen, zeig mir, gib mir, finde, cherche sur internet, cherche sur le web,
    cherche en ligne, cherche, recherche sur internet, recherche, peux-tu, peux-tu me dire, pouvez-vous,
    pouvez-vous me dire, pourriez-vous me dire, dis-moi, s'il te plaît, s'il vous plaît, et, quel est, quelle est,
    quels sont, quelles sont, qu'est-ce que, donne-moi, trouve, trouve-moi, je voudrais savoir, j'aimerais savoir,
    busca en internet, busca en la web, busca en google, busca en línea, busca, buscar, búscame, puedes,
    puedes buscar, puedes decirme, podrías, podrías decirme, dime, por favor, y, cuál es, cuáles son, qué es, dame,
    quiero saber, me gustaría saber
    """
)
FILLER_SUFFIXES = phrase_set(
    """
    please, pls, plz, thanks, thank you, thx, thanks in advance, for me, with links, with link, with sources,
    with citations, and cite your sources, on internet, on web, online, and try again, try again, bitte, danke, merci,
    s'il te plaît, s'il vous plaît, svp, por favor, gracias, if you can, if possible, asap
    """
)
UNSPACED_FILLERS = word_list(  # the longer ones first
    """
    请帮我 帮我 请问 请你 请 上网查一下 上网查 上网搜索 上网搜一下 搜索一下 搜一下 查一下 搜索 告诉我 我想知道
    ネットで調べて ウェブで検索して 検索して 調べてください 調べて ググって
    教えてください を教えて 教えて ください お願いします
    """
)
FUNCTION_WORDS = word_set(
    """
    a an the of in on at to for from by with and or but is are was were be been am do does did has have had will
    would can could should may might it its he she his her him they them their there that those this these one ones
    i me my we us our you your what whats what's who whos who's when where which why how whose much many about so as
    if then than not no yes any some again more please thanks ok okay just also still into up out der die das ein
    eine und oder ist sind wer wie wo wann le la les un une et ou est sont qui que quoi quel quelle el los las una y
    o es son qué quién cuál
    """
)
DAYS = word_set("today tonight tomorrow yesterday now heute morgen gestern aujourd'hui demain hoy mañana ayer")


def split_words(text: str) -> list[str]:
    """The words of a message in lower case, without articles and without the ending of "what's"."""
    found = WORD.findall(text.lower().replace("’", "'"))
    return [word.removesuffix("'s") for word in found if word not in ARTICLES]
