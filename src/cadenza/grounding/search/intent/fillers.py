"""Words that a query does not need: politeness, asks to search, and little words."""

from cadenza.grounding.search.intent.word_set import word_set

PREFIXES = """
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
SUFFIXES = """
    please, pls, plz, thanks, thank you, thx, thanks in advance, for me, with links, with link, with sources,
    with citations, and cite your sources, on internet, on web, online, and try again, try again, bitte, danke, merci,
    s'il te plaît, s'il vous plaît, svp, por favor, gracias, if you can, if possible, asap
"""
UNSPACED = """
    请帮我 帮我 请问 请你 请 上网查一下 上网查 上网搜索 上网搜一下 搜索一下 搜一下 查一下 搜索 告诉我 我想知道
    ネットで調べて ウェブで検索して 検索して 調べてください 調べて ググって
    教えてください を教えて 教えて ください お願いします
"""
LITTLE_WORDS = word_set(
    """
    a an the of in on at to for from by with and or but is are was were be been am do does did has have had will
    would can could should may might it its he she his her him they them their there that those this these one ones
    i me my we us our you your what whats what's who whos who's when where which why how whose much many about so as
    if then than not no yes any some again more please thanks ok okay just also still into up out der die das ein
    eine und oder ist sind wer wie wo wann le la les un une et ou est sont qui que quoi quel quelle el los las una y
    o es son qué quién cuál
    """
)
