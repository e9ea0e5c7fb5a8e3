"""The words by which `decision` knows what a message is about, and how they are found in it.

A message is split into words once, and each word is looked up once: the cost is linear in the message. Articles
do not count. Chinese and Japanese have no spaces: their phrases are searched for as they stand.
"""

import enum
import re
from collections.abc import Sequence

WORD = re.compile(r"[^\W_]+(?:['’.\-][^\W_]+)*")
ARTICLES = frozenset(("the", "a", "an", "please", "pls", "plz", "quick", "quickly", "bitte", "mal"))


class Kind(enum.Enum):
    """What a phrase says about the message that it is in."""

    __hash__ = object.__hash__  # members are looked up often, and Enum's own is slow

    ASK = enum.auto()  # search the web
    FORBID = enum.auto()  # do not search
    NEWS = enum.auto()  # asks for the state of things now
    DAY = enum.auto()  # a day or week near today; people use these words for their own plans too
    CHANGING = enum.auto()  # a fact that changes: a price, a score, a schedule
    PLACE = enum.auto()  # a business or an event, with a place
    OFFICE = enum.auto()  # an office, after "who"
    VERSION = enum.auto()  # versions of software
    CURRENCY = enum.auto()  # two of them make an exchange rate
    CODE = enum.auto()
    TEXT = enum.auto()  # work on a text that is given
    TRANSLATION = enum.auto()
    MATHS = enum.auto()
    CREATIVE = enum.auto()
    CHAT = enum.auto()
    ASSISTANT = enum.auto()  # about the assistant or the conversation
    SETTLED = enum.auto()  # asks how something works or what a word means
    NEUTRAL = enum.auto()  # looks like one of the others and is not
    PERSONAL = enum.auto()  # advice about the person's own life


PHRASES = {
    Kind.ASK: """
        give me link, give me links, send me link, verify online, verify that online, verify this online,
        check that online, find me, find good, find cheap, find some, find article, find video, find paper,
        find podcast, link to article, rausuchen, such mir, trouve-moi, encuéntrame, cite them, cite studies,
        any studies, show studies, peer-reviewed, references for, check if, check whether, source and link,
        link to source, any source, search web, search on web, search internet, search on internet, search online,
        web search, internet search, look up, look it up, look that up, look this up, google it, bing it, browse web,
        browse internet, browse for, check online, check web, check internet, check on internet, find online,
        find on internet, find on web, find out online, look online, look on internet, search wikipedia,
        wikipedia say, wikipedia says, wikipedia article, according to wikipedia, with links, with link, with sources,
        with source, with citations, cite sources, cite your sources, give me sources, some sources, find sources,
        sources for that, citation for, source for that, fact check, fact-check, use web, use internet, go online,
        do search, research online, online search, such im internet, suche im internet, im internet suchen,
        im internet nach, such im netz, suche im netz, im netz suchen, im web, google nach, googel, googele, googeln,
        recherchier, recherchiere, recherchieren, schau nach, schlag nach, mit quellen, mit links,
        cherche sur internet, cherche sur le web, cherche en ligne, chercher sur internet, recherche sur internet,
        rechercher sur internet, recherche sur le web, regarde sur internet, vérifie sur internet,
        trouve sur internet, avec sources, avec des sources, avec liens, busca en internet, busca en la web,
        busca en línea, busca en google, buscar en internet, búscalo, búscame, buscame, consulta en internet,
        con fuentes, con enlaces, googlea, can you search, could you search, can you google, just google, to google,
        google for, google whether, google if, google what, google who, google how, google when, you browse
    """,
    Kind.FORBID: """
        don't search, do not search, dont search, don't google, do not google, dont google, don't look, do not look,
        dont look, don't browse, do not browse, don't use web, don't use internet, do not use internet,
        without searching, without search, without googling, without looking it up, without looking anything up,
        without internet, without web, without browsing, no web, no search, no searching, no internet, no googling,
        from memory, from your memory, offline answer, not search, ohne internet, ohne suche, ohne web,
        ohne zu suchen, ohne zu googeln, nicht suchen, nicht googeln, nicht im internet, such nicht, suche nicht,
        aus gedächtnis, sans internet, sans chercher, sans rechercher, sans recherche, sans aller sur internet,
        ne cherche pas, ne recherche pas, de mémoire, sin internet, sin buscar, no busques, de memoria
    """,
    Kind.NEWS: """
        is still, are still, still so, immer noch, toujours, todavía, last year, has been updated, been updated,
        been refreshed, been released, been announced, letztes jahr, année dernière, año pasado, already, going on,
        in past week, past week, past month, past few days, is out, schon, déjà, ya hay, latest, newest, most recent,
        recent, recently, current, curent, currrent, currently, curently, right now, at moment, atm, nowadays,
        as of now, as of today, so far, up-to-date, up to date, news, breaking, headlines, update on, updates on,
        any update, any updates, trending, this quarter, last quarter, any new, still open, still alive,
        still supported, still available, still working, still valid, just announced, just released, announced,
        just happened, going on in, happening in, this season, last season, this year, next year, came into force,
        come into force, in force, anymore, these days, to date, people saying, yet, aktuell, aktuelle, aktueller,
        aktuellen, aktuelles, neueste, neuesten, neuester, neuestes, derzeit, momentan, gerade, im moment, zurzeit,
        nachrichten, kürzlich, dieses jahr, diesem jahr, neulich, neuigkeiten, neues vom, neues von, neues zu,
        neues zum, was gibt's neues, gestern, jüngste, jüngsten, heutzutage, letzte nacht, actuel, actuelle, actuels,
        actuelles, actuellement, en ce moment, dernière, dernières, dernier, derniers, récent, récente, récents,
        récentes, récemment, nouvelles, actualité, actualités, cette année, actualmente, reciente, recientes,
        recientemente, última, últimas, último, últimos, noticias, ahora mismo, en este momento, ayer, este año,
        anoche, hoy en día, d'hier, actual de, actual del, precio actual, presidente actual, situación actual
    """,
    Kind.DAY: """
        today, tonight, last night, hier soir, am montag, am dienstag, am mittwoch, am donnerstag, am freitag,
        am samstag, am sonntag, on weekends, tomorrow, tmrw, tmr, tomorow, tommorow, yesterday, this morning,
        this afternoon, this evening, this week, this weekend, next week, next weekend, last week, last weekend,
        this month, last month, next month, now, lately, on sunday, on monday, on tuesday, on wednesday, on thursday,
        on friday, on saturday, upcoming, soon, coming up, heute, morgen, heutige, heutigen, heute abend, diese woche,
        dieser woche, nächste woche, letzte woche, dieses wochenende, am wochenende, diesen monat, jetzt, aujourd'hui,
        demain, ce soir, cette semaine, semaine prochaine, semaine dernière, ce week-end, ce mois, maintenant,
        bientôt, hoy, mañana, esta noche, esta semana, este fin de semana, próxima semana, semana pasada, este mes,
        ahora
    """,
    Kind.CHANGING: """
        wo kann man, wo kann ich, wo gibt es, wo finde ich, où trouver, où manger, dónde puedo, dónde comer,
        average rent, average salary, average wage, average income, rent for, retirement age, drinking age,
        voting age, most followed, most watched, most streamed, most subscribed, most visited, most used,
        most downloaded, who is most, any good, contact, i contact, i apply, i register, i renew, i cancel, i claim,
        how to apply, how to register, how to renew, how to cancel, how to contact, where do i, where to eat,
        where to stay, rents, is doing, are doing, doing against, nueva temporada, nouvelle saison, neue staffel,
        temporada de, salió, is there app, is there website, is there tool, is there service, are there apps,
        say about, stance on, position on, warranty, patch notes, driver for, drivers for, top songs, charts,
        ranking of, rankings, ranked, farmers market, things to do in, what to do in, what to see in, short supply,
        shortage, taxed, under 500, injured, injury, transfer news, line up, retirement of, tour dates, on tour,
        touring, what on at, discontinued, reviewers, earthquake, storm, hurricane, typhoon, wildfire, wildfires,
        flood, flooding, explosion, shooting, plane crash, protests, verdict, election, elections, referendum,
        sanctions, ceasefire, earn, earns, paid, pay rise, verdient, verdienen, gehalt, schließt, öffnet, macht auf,
        macht zu, fährt, gagne, salaire, heure ferme, ferme, ouvre, cierra, abre, gana, sueldo, salario, book flights,
        jackpot, lottery, power cut, queue, leave do, fastest, biggest, largest, highest-paid, most popular,
        most expensive, best-selling, most valuable, top 10, recommended, recommendation for, maximum, minimum age,
        subsidies, subsidy, grants, raised, valuation, funding, quarterly, q1, q2, q3, q4, school holidays, eta,
        eta for, cabin bag, baggage, luggage, hand luggage, baggage allowance, regulations, on time, refund,
        wait time, processing time, how long does it take to get, how long does take to get, umfragen, ferien,
        förderung, weihnachtsmarkt, steuersatz, gesperrt, vacances scolaires, prochaines, prochain, prochaine,
        subventions, sondages, encuestas, subvenciones, próximo, próxima, price, prices, pricing, deals on, deals,
        coupon, promo code, phone number, phone number for, customer service, snow report, weather report, dow,
        dow jones, nasdaq, s p 500, dax, ftse, nikkei, vat, tax, taxes on, allowance, max contribution,
        contribution limit, contribution limits, income limit, legal in, by law, rate in, rate for, rates for,
        rates in, speed limit, requirements for, banned, wait for, waiting time, sunrise, sunset, full moon, new moon,
        eclipse, super bowl, oscars, grammys, world cup, olympics, champions league, bundesliga, premier league,
        la liga, serie a, nba, nfl, nhl, mlb, f1, formula 1, eurovision, euros final, what channel, which channel,
        in orbit, happening with, going on with, latest on, happened with, juega, a qué hora, spielt, wie teuer,
        was kostet, loyer, loyers, carburant, carburants, essence, gasolina, alquiler, miete, how much is,
        how much are, how much does, how much do, how much for, cost, costs, cheap, cheapest, cheaper, discount,
        on sale, in stock, available in, sold in, to buy, worth buying, worth it, reviews, rating, ratings,
        subscription, fee, fees, fare, fares, tickets, flights, flight, hotel, hotels, stock, stocks, stock price,
        share price, shares, market cap, exchange rate, interest rate, interest rates, mortgage rate, mortgage rates,
        tax rate, tax rates, inflation, inflation rate, unemployment, unemployment rate, gdp, minimum wage, salary,
        salaries, net worth, richest, wealthiest, population, world record, record for, weather, wether in, forecast,
        temperature in, umbrella, snowing, raining, air quality, pollen, traffic, score, scores, standings,
        league table, who won, who is winning, results of, election results, polls, polling, fixtures, lineup,
        line-up, next game, next match, earnings, revenue, subscribers, followers, status of, ferry times, bus times,
        train times, show times, showtimes, prayer times, hours for, hours of, bank holiday, public holiday,
        public holidays, holiday in, documents do i need, apply for, passport, permit, visa, rain, sunny, snow in,
        snowing in, rain in, airlines, ferry, playing at, laid off, layoffs, did win, who win, sales of,
        where can i watch, watch online, streaming on, gas prices, fuel prices, house prices, rent in, rents in,
        tuition, wait times, waiting list, sold out, strike, strikes, delays, delayed, cancelled, when next,
        when is next, when are next, wann ist nächste, quand est prochain, cuándo es próximo, next race, next episode,
        next season, next election, next launch, kick-off, kickoff, box office, schedule of, train schedule,
        game schedule, match schedule, tv schedule, timetable, last train, first train, next train, last bus,
        next bus, what time does, opening hours, opening times, business hours, open on, opens at, closing time,
        open until, open late, release date, come out, comes out, coming out, came out, go on sale, goes on sale,
        launch date, available yet, out yet, visa requirements, visa for, need visa, entry requirements,
        travel warning, travel advice, covered by, eligible for, eligibility, deadline for, deadline, phone number of,
        address of, contact details, near me, nearby, nearest, restaurant in, restaurants in, bakery near,
        best restaurants, where can i, down right, is down, outage, outages, recall, recalled, lawsuit,
        still in office, who owns, alternatives to, compatible with, specs, specs of, benchmarks, best laptop,
        best laptops, best phone, best phones, best headphones, best camera, best monitor, best tv, best car,
        best budget, wetter, preis, preise, kostet, kosten, wie viel kostet, wechselkurs, kurs, aktienkurs, aktie,
        öffnungszeiten, geöffnet, fahrplan, spielstand, tabelle der, einwohner, zinsen, mindestlohn, wann kommt,
        wann spielt, wer hat gewonnen, wer gewann, météo, temps fera-t-il, quel temps, prix, coûte, coûtent,
        combien coûte, horaires, cours de, qui a gagné, score de, taux, billets, résultats, tiempo hace, clima en,
        precio, precios, cuesta, cuestan, cuánto cuesta, horario, horarios, quién ganó, resultado, resultados,
        tipo de cambio, cotización, entradas para, buy one, i buy, where to buy, review of
    """,
    Kind.PLACE: """
        restaurant, restaurants, cafe, cafes, café, bar, bars, pub, pubs, hotel, hotels, hostel, dentist, doctor, gp,
        pharmacy, gym, gyms, museum, museums, cinema, cinemas, theatre, theater, exhibition, exhibitions, concert,
        concerts, event, events, festival, festivals, shop, shops, store, stores, supermarket, supermarkets, bakery,
        hairdresser, barber, plumber, electrician, vet, clinic, flu shot, driving test, market, markets, parking,
        campsite, apartment, apartments, flat, flats, ausstellung, ausstellungen, konzert, konzerte, arzt, zahnarzt,
        apotheke, supermarkt, médecin, dentiste, concerts à, restaurante, restaurantes, médico, museo
    """,
    Kind.OFFICE: """
        ministre, ministro, ministra, minister, president, vice president, prime minister, pm of, chancellor, ceo,
        cto, cfo, chairman, chairwoman, chair of, head of, king of, queen of, pope, mayor, governor, secretary,
        secretary-general, director of, manager of, coach, captain of, champion, champions, leader of, speaker of,
        owner, number one, record holder, host of, bundeskanzler, bundeskanzlerin, kanzler, bundespräsident,
        präsident, präsidentin, ministerpräsident, bürgermeister, papst, chef von, président, présidente,
        premier ministre, maire, pape, presidente, presidenta, primer ministro, alcalde, papa, rey de
    """,
    Kind.VERSION: """
        version of, latest version, new version, neue version, version von, nouvelle version, nueva versión,
        current version, newest version, latest release, stable release, stable version, release of, release notes,
        changelog, lts, end of life, eol, deprecated in, known bug, known issue, new in, what changed in,
        breaking changes in, what new, whats new
    """,
    Kind.CURRENCY: """
        usd, eur, gbp, inr, jpy, cny, chf, cad, aud, sek, nok, dkk, brl, mxn, krw, zar, pln, dollar, dollars, euro,
        euros, pound, pounds, sterling, yen, yuan, rupee, rupees, franc, francs, krona, krone, peso, pesos, btc, eth
    """,
    Kind.CODE: """
        write query, query that, sql query, function, python, javascript, typescript, java, c++, rust code, golang,
        in go, in c, in rust, sql, regex, regexp, bash, shell script, powershell, dockerfile, docker, unit test,
        unit tests, refactor, debug, compile, compiler, stack trace, stacktrace, traceback, exception, keyerror,
        typeerror, valueerror, segfault, syntax error, react component, react, component, css, html, json, yaml, xml,
        api, rest api, endpoint, git, commit, rebase, pandas, numpy, dataframe, linked list, array, algorithm,
        for loop, recursion, class method, variable, this code, my code, code, script, query do, this query, cron,
        cron expression, let and const, async, await, pointer, mutex, thread-safe, implement, kubernetes, nginx,
        makefile, latex, excel formula, spreadsheet formula, vba, curl, this error, error message, select, npm, pip
    """,
    Kind.TEXT: """
        below are, below is, here are minutes, minutes of, rewrite, reword, rephrase, paraphrase, proofread,
        proof-read, edit this, edit my, correct this, correct my, improve this, improve my, polish my, polish this,
        synonyms for, synonym for, synonyms of, plural of, antonym of, rhymes with, make this, make following,
        make my, summarise this, summarize this, summarise following, summarize following, summarise text,
        summarize text, summary of this, summary of following, shorten, shorten this, tldr this, turn this,
        turn these, turn following, extract all, extract from, following text, this text, text below, following email,
        this email, this message, this paragraph, this essay, this letter, following letter, this sentence,
        cover letter, my cv, my resume, my essay, bullet points, grammar, tone of, classify, fix grammar, spelling,
        umformulieren, formuliere, fasse, folgenden text, diesen text, korrigiere, kürze, résume ce, résume le,
        résumez, texte suivant, ce texte, reformule, corrige, reescribe, resume este, resume el, siguiente texto,
        este texto, resúmeme, corrige este
    """,
    Kind.TRANSLATION: """
        say in, wie heißt auf, was heißt, translate, translation of, translation, how do you say, how to say,
        how do i say, in french mean, übersetze, übersetz, übersetzen, übersetzung, wie sagt man, traduis, traduire,
        traduisez, traduction, comment dit-on, traduce, traducir, traduzca, tradúceme, traducción, cómo se dice
    """,
    Kind.MATHS: """
        solve, integral, integrate, derivative, differentiate, equation, calculate, compute, probability,
        how many days between, how many days from, how many weeks between, percent of, reduced by, increased by,
        square root, factorise, factorize, factor, prove, theorem, convert, multiply, divided by, if i invest,
        compound interest, km h, berechne, calcule, calcula
    """,
    Kind.NEUTRAL: """
        current ratio, current through, current in circuit, current in wire, direct current, alternating current,
        electric current, current user, current directory, current date, stock option, stock options, stock photo,
        stock photos, chicken stock, vegetable stock, stock exchange work, price elasticity, breaking up,
        breaking bad, weather on venus, weather on mars, latest date, recent call, credit score, news anchor,
        good news, bad news, now and then, opportunity cost, cost function, interest rate risk, by now, until now,
        passport photo
    """,
    Kind.CREATIVE: """
        think of, come up with, pun, puns, headline, write article, make me, create, poem, haiku, limerick, sonnet,
        story, short story, joke, jokes, song, lyrics, rap, tweet, slogan, slogans, toast, speech for, names for,
        name ideas, brainstorm, roleplay, role-play, role play, act as, pretend, imagine, fiction, screenplay,
        dialogue, compose, write me, write, write letter, invitation, birthday card, caption, captions, riddle,
        dungeons, fairy tale, gedicht, geschichte, witz, lied, schreib, schreibe, écris, poème, chanson,
        histoire drôle, blague, rédige, escribe, poema, canción, cuento, chiste
    """,
    Kind.CHAT: """
        hi, hello, hey there, thanks, thank you, thx, ty, good morning, good night, good evening, how are you,
        how's it going, how is your day, lol, haha, ok cool, cool, great, nice one, bye, goodbye, see you,
        something interesting, bored, hallo, danke, guten morgen, guten tag, gute nacht, wie geht, merci, bonjour,
        salut, bonne nuit, ça va, hola, gracias, buenos días, buenas noches, qué tal
    """,
    Kind.ASSISTANT: """
        do you remember, you remember, we talked, we discussed, i told you, earlier you, are you, who made you,
        made you, created you, trained you, your name, your knowledge, your training, your last, your previous,
        your second, your first, your answer, your answers, your reply, your response, your point, your opinion,
        you said, you told, you mentioned, you just, did i just, did i ask, did i say, i asked, our conversation,
        this conversation, this chat, can you search web, can you search internet, can you browse web,
        can you browse internet, can you access internet, do you have access, can you do, are you able, you are an ai,
        as table, into table, shorter, longer, simpler, put that, put it, say that again, again in, rephrase that,
        summarise that, summarize that, make it, in one sentence, into one sentence, bist du,
        kannst du im internet suchen, dein name, es-tu, ton nom, eres, tu nombre
    """,
    Kind.SETTLED: """
        stand for, stands for, determined by, determine, how to make, recipe for, recipe, difference between,
        meaning of, explain, definition of, define, what is meant, history of, causes of, how is measured, why is,
        why do, why does, why are, unterschied zwischen, bedeutet, erkläre, erklär, wie funktioniert,
        différence entre, signifie, explique, comment fonctionne, diferencia entre, significa, explica, cómo funciona
    """,
    Kind.PERSONAL: """
        should i, i cook, my day, plan my, plan for this, plan for my, workout, what can i do, how do i tell,
        how can i tell, my boss, my cat, my dog, my wife, my husband, my girlfriend, my boyfriend, my partner,
        my kids, my son, my daughter, my mother, my father, my friend, meal plan, recipe with, study plan, i feel,
        i'm feeling, i am feeling, outfit, wear to, for dinner, for lunch, soll ich, devrais-je, debería
    """,
}

UNSPACED = {
    Kind.ASK: """
        上网 搜索 搜一下 搜一搜 查一下 查查 网上查 网上找 百度一下 谷歌 检索 調べて しらべて 検索 ググって
        ネットで ウェブで 出典
    """,
    Kind.FORBID: """
        不要搜索 别搜索 不要上网 别上网 不用搜索 不要查 检索しないで 検索しないで 検索せずに 調べずに 調べないで
        ネットを使わず
    """,
    Kind.NEWS: """
        最新 目前 现在 当前 最近 近期 新闻 今年 昨天 昨晚 刚刚 現在 現時点 ニュース 速報 昨日 昨夜 いま話題 直近
    """,
    Kind.DAY: "今天 今晚 明天 本周 这周 这个周末 本月 下周 今日 明日 今夜 今週 来週 今週末 今月 来月",
    Kind.CHANGING: """
        天气 下雨 下雪 美元 兑换 行情 比赛 门票 航班 电影院 価格 価格は 成績 チケット 映画館 价格 多少钱 票价
        汇率 股价 股票 比分 比赛结果 几点开门 营业时间 时刻表 房价 油价 金价 排名 天気 気温 値段 いくら 為替
        株価 試合 結果 営業時間 時刻表 終電 運賃 料金 発売日 順位
    """,
    Kind.OFFICE: "总统 总理 首相 主席 大統領 総理大臣 社長 市長 CEO",
    Kind.VERSION: "版本 バージョン",
    Kind.CODE: "代码 函数 编程 コード 関数 プログラム",
    Kind.TEXT: "改写 润色 总结以下 以下文字 校对 要約して 書き直して 添削 次の文章",
    Kind.TRANSLATION: "翻译 译成 翻訳 訳して",
    Kind.CREATIVE: "写一首 写诗 写一个故事 笑话 作文 詩を 物語 小説 ジョーク",
    Kind.CHAT: "你好 谢谢 早上好 晚安 こんにちは おはよう ありがとう こんばんは よろしく",
    Kind.ASSISTANT: "你是谁 你叫什么 あなたは誰 君は誰",
    Kind.SETTLED: "什么是 是什么意思 为什么 区别 とは 意味 なぜ 違い",
}


Rest = tuple[str, ...]  # the words of a phrase after its first one


def _by_first_word() -> dict[str, tuple[tuple[int, dict[Rest, list[Kind]]], ...]]:
    """For each first word, the phrases by the number of words that follow: one look-up for each number."""
    table = dict[str, dict[int, dict[Rest, list[Kind]]]]()
    for kind, listed in PHRASES.items():
        for phrase in listed.split(","):
            first, *rest = (word for word in phrase.split() if word not in ARTICLES)
            table.setdefault(first, {}).setdefault(len(rest), {}).setdefault(tuple(rest), []).append(kind)
    return {first: tuple(by_length.items()) for first, by_length in table.items()}


BY_FIRST_WORD = _by_first_word()
BY_SUBSTRING = tuple((phrase, kind) for kind, listed in UNSPACED.items() for phrase in listed.split())


def split_words(text: str) -> list[str]:
    """The words of a message in lower case, without articles and without the ending of "what's"."""
    found = WORD.findall(text.lower().replace("’", "'"))
    return [word.removesuffix("'s") for word in found if word not in ARTICLES]


def find_kinds(text: str, words: Sequence[str]) -> dict[Kind, list[int]]:
    """The kinds of phrases in a message, with the number of the word at which each phrase begins."""
    found = dict[Kind, list[int]]()
    following = tuple(words)
    for place, word in enumerate(words, 1):
        for length, phrases in BY_FIRST_WORD.get(word, ()):
            for kind in phrases.get(following[place : place + length], ()):
                found.setdefault(kind, []).append(place - 1)
    for place in found.pop(Kind.NEUTRAL, ()):
        _remove(found, place)
    if not text.isascii():
        for phrase, kind in BY_SUBSTRING:
            if phrase in text:
                found.setdefault(kind, []).insert(0, 0)
    return found


def _remove(found: dict[Kind, list[int]], place: int) -> None:
    for kind in [kind for kind, places in found.items() if place in places]:
        found[kind] = [other for other in found[kind] if other != place]
        if not found[kind]:
            del found[kind]
