"""What the person says about searching itself: "search the web for …", "without looking it up".

Only phrases that leave no doubt are here, without articles. "Look up" and "find" are left to the scorer: people look up
values in tables too.
"""

from collections.abc import Sequence

ASKED = """
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
FORBIDDEN = """
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
ASKED_UNSPACED = """
    上网查 上网搜 上网找 网上查 网上搜 网上找 搜索一下 百度一下 谷歌一下
    ネットで調べ ネットで検索 ウェブで検索 検索して ググって
"""
FORBIDDEN_UNSPACED = """
    不要搜索 别搜索 不要上网 别上网 不用搜索 不要查 検索しないで 検索せずに 調べずに 調べないで ネットを使わず
"""


def asks_to_search(text: str, words: Sequence[str]) -> bool:
    """`words` are those of the text, in lower case and without articles."""
    return _has(text, words, ASKED_PHRASES)


def forbids_search(text: str, words: Sequence[str]) -> bool:
    return _has(text, words, FORBIDDEN_PHRASES)


def _phrases(spaced: str, unspaced: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(f" {' '.join(phrase.split())} " for phrase in spaced.split(",")), tuple(unspaced.split())


ASKED_PHRASES = _phrases(ASKED, ASKED_UNSPACED)
FORBIDDEN_PHRASES = _phrases(FORBIDDEN, FORBIDDEN_UNSPACED)


def _has(text: str, words: Sequence[str], phrases: tuple[tuple[str, ...], tuple[str, ...]]) -> bool:
    spaced, unspaced = phrases
    joined = f" {' '.join(words)} "
    return any(phrase in joined for phrase in spaced) or (
        not text.isascii() and any(phrase in text for phrase in unspaced)
    )
