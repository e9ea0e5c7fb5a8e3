"""Guesses the encoding of text that is not UTF-8: the one in which its bytes are the least surprising.

For each language in an encoding, the bytes cost a number of bits: a frequent letter few, a rare one more, a letter that
the language does not have many. The encoding with the fewest bits is the guess. Only the first 16 KiB from the first
byte beyond ASCII are looked at, which bounds the time: 20 ms.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from functools import cache

import msgspec

SAMPLE_BYTES = 16 * 1024
BEFORE_BYTES = 100  # of the line of the first byte beyond ASCII
BEYOND_ASCII = re.compile(rb"[\x80-\xff]")

# costs in bits
COMMON = 13.5  # a character that is common in the encoding, but not in the list of the language
STRANGE = 18.0  # any other character of an encoding with thousands
STRANGE_LETTER = 13.0  # any other character of an encoding with 128
NO_TEXT = 15.0  # in addition, if it is not a character
MIXED = 4.0  # a letter beside an ASCII letter, in a language that is not written with these
DOUBLE = 2.5  # two letters beyond ASCII side by side, in a language that has few
INNER_CAPITAL = 6.0
INNER_SIGN = 5.0  # a sign inside a word: other encodings have a letter in its place
PER_BYTE_MAX = 7.5  # text takes 4 to 6, other data 8 and more
SHORT_TEXT = 16.0  # in addition: a few characters say little
RANK_SHIFT = 2

ASCII_BITS = (
    {chr(code): 7.0 for code in range(128)}
    | dict.fromkeys("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 6.5)
    | dict.fromkeys("0123456789,.\n\r\t", 5.0)
    | dict.fromkeys("abcdefghijklmnopqrstuvwxyz", 4.5)
    | {" ": 3.0}
)
EUC_TRAILS = range(0xA1, 0xFF)
COMMON_CHARACTERS = {  # the part of each encoding that has the common ones: its first and last lead byte
    "cp932": ("euc_jp", 0xB0, 0xCF, EUC_TRAILS),
    "euc_jp": ("euc_jp", 0xB0, 0xCF, EUC_TRAILS),
    "gb18030": ("gb2312", 0xB0, 0xD7, EUC_TRAILS),
    "cp950": ("cp950", 0xA4, 0xC6, (*range(0x40, 0x7F), *EUC_TRAILS)),
    "cp949": ("euc_kr", 0xB0, 0xC8, EUC_TRAILS),
}
LETTER = r"[^\W\d_a-zA-Zªºµ]"  # beyond ASCII
BESIDE_ASCII = re.compile(rf"[a-zA-Z](?={LETTER})|{LETTER}(?=[a-zA-Z])")
INNER_SIGNS = re.compile("(?<=[a-z])[¡¢¥¨ª¬¯²³¸¹º¼½¾¿](?=[a-z])")
SIDE_BY_SIDE = re.compile(rf"{LETTER}(?={LETTER})")
NOT_TEXT = re.compile("[\x80-\x9f\ufffd\ue000-\uf8ff]")


class Writing(Enum):
    """Letters beyond ASCII are used among ASCII letters, instead of them, or are characters by the thousand."""

    LATIN = "latin"
    ALPHABET = "alphabet"
    CHARACTERS = "characters"


def _with_capitals(letters: str, others: str) -> str:
    return letters + letters.upper() + others


# The letters of languages beyond ASCII, roughly the most frequent first; for Chinese, Japanese and Korean, the
# characters that a list, a form or a letter is likely to have. The order need not be exact: the cost of a letter is the
# logarithm of its rank.
JAPANESE = (
    "のにはをたがでとしるいれなーンりす、。ルストっらてこさあもかきイクラリけうまよめドアロそせシジタッフプマレテコく"
    "みつどえおわちじメムグニデカサキィオウブだばべ「」・日年月人一大中本国会者事出上分生行自的時間地方名見同学部社前"
    "手定内体業高合対理新場立力金員最動下作長入連関全問小市物数書発回使用性主実明代気今通水不開目度来後話法意表現車家"
    "何調特知持平成政民工経済記必要利相先式文語解制計予品東京所有別化取加空在報重道外私子思機世無二三十四五六七八九百"
    "千万円受付登録変更削除確認保存画面設情件選択検索番号住氏称電郵便商単価量額税込抜備考担当顧客様請求注庫納期支払曜"
    "火木土朝昼夜昨秒週半初値例接続送信管権限許可禁止始終了次左右追編集複製移戻字列型白効正誤真偽言葉英版条規約個護針"
    "質答教育研究技術造販売株締役課係男女齢歳県区町村丁室ァゥェォャュョヵヶパピペポバビベボガギゲゴザズゼゾダヂヅハヒ"
    "ヘホナヌネノミモヤユヨワヲヴぁぃぅぇぉゃゅょぎぐげござぜぞぢづびぶぼぱぴぷぺぽねぬひふへほむやゆろ（）！？：；『"
    "』【】〜～／％＆＋－＝｜…‥〒々〆屋食店料駅山川海花春夏秋冬風雨天井田林森石橋口門野原島北南西都府阪神奈横浜古福"
    "岡広佐藤鈴渡辺伊吉松清阿斎"
)
CHINESE = (
    "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定"
    "行学法所民得经十三之进着等部度家电力里如水化高自二理起小物现实加量都两体制机当使点从业本去把性好应开它合还因由其"
    "些然前外天政四日那社义事平形相全表间样与关各重新线内数正心反你明看原又么利比或但质气第向道命此变条只没结解问意建"
    "月公无系军很情者最立代想已通并提直题党程展五果料象员革位入常文总次品式活设及管特件长求老头基资边流路级少图山统接"
    "知较将组见计别她手角期根论运农指几九区强放决西被干做必战先回则任取据处队南给色光门即保治北造百规热领七海口东导器"
    "压志世金增争济阶油思术极交受联什认六共权收证改清己美再采转更单风切打白教速花带安场身车例真务具万每目至达走积示议"
    "声报斗完类八离华名确才科张信马节话米整空元况今集温传土许步群广石记需段研界拉林律叫且究观越织装影算低持音众书布复"
    "容儿须际商非验连断深难近矿千周委素技备半办青省列习响约支般史感劳便团往酸历市克何除消构府称太准精值号率族维划选标"
    "写存候毛亲快效斯院查江型眼王按格养易置派层片始却专状育厂京识适属圆包火住调满县局照参红细引听该铁价严，。、：；（"
    "）！？“”‘’《》—…·【】￥％姓址额注编客户订司邮箱城份税态密码登录册退删添修搜索询显隐藏载链错误警告功失败请"
    "输择返帮助语言默限创星昨龄男女岁银账卡付款费购买卖库仓货递"
)
TRADITIONAL = (
    "的一是在不了有和人這中大為上個國我以要他時來用們生到作地於出就分對成會可主發年動同工也能下過子說產種面而方後多定"
    "行學法所民得經十三之進著等部度家電力裡如水化高自二理起小物現實加量都兩體制機當使點從業本去把性好應開它合還因由其"
    "些然前外天政四日那社義事平形相全表間樣與關各重新線內數正心反你明看原又麼利比或但質氣第向道命此變條只沒結解問意建"
    "月公無系軍很情者最立代想已通並提直題黨程展五果料象員革位入常文總次品式活設及管特件長求老頭基資邊流路級少圖山統接"
    "知較將組見計別她手角期根論運農指幾九區強放決西被幹做必戰先回則任取據處隊南給色光門即保治北造百規熱領七海口東導器"
    "壓志世金增爭濟階油思術極交受聯什認六共權收證改清己美再採轉更單風切打白教速花帶安場身車例真務具萬每目至達走積示議"
    "聲報鬥完類八離華名確才科張信馬節話米整空元況今集溫傳土許步群廣石記需段研界拉林律叫且究觀越織裝影算低持音眾書布復"
    "容兒須際商非驗連斷深難近礦千周委素技備半辦青省列習響約支般史感勞便團往酸歷市克何除消構府稱太準精值號率族維劃選標"
    "寫存候毛親快效斯院查江型眼王按格養易置派層片始卻專狀育廠京識適屬圓包火住調滿縣局照參紅細引聽該鐵價嚴，。、：；（"
    "）！？「」『』《》—…·【】￥％姓址額註編客戶訂司郵箱城稅態密碼登冊刪修儲搜尋詢顯隱藏載檔案錯誤警告功失敗請輸擇"
    "返語言預限星昨齡男女歲帳銀卡付款費購買賣庫倉貨遞欄"
)
KOREAN = (
    "이다는에의하을가고지한사로를은리기어자대나시인일도그아있정스수해서제보부상들만주었전장라과것적중구원게비여조유동"
    "성물국소관오공실생계우안발위면경신선방화내명세문분회체연무년월입미개모트당드출니마치진습말할않행용작건식통본까양"
    "현력했등불음바단터던복심재결각으업설야달교며때술거살민간외형품러타프크되노데합영역반처약날록규집매후호버려임운권"
    "산포요금레질져차목편감태법없될된강남북초점배종피증별확변환코카디메직름람울싶같많또너번취저삭추검색짜량격액객율류"
    "밀웃탈퇴택언토늘녀좌판창송값열키올른필뷰팀총글씨왔줄못좋뒤앞왼쪽흰빨파란녹책읽쓰듣밥길땅"
)

CYRILLIC_SIGNS = "№«»—–\xa0…“”„’"
RUSSIAN = _with_capitals("оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъё", CYRILLIC_SIGNS)
UKRAINIAN = _with_capitals("оаинтевірсукдлпмзяьбгйчхжцїшющєфґ", CYRILLIC_SIGNS)
BULGARIAN = _with_capitals("аеионтрсвлкдпмзуъгбчящжйхцшюфь", CYRILLIC_SIGNS)
GREEK = "αοιετσνηρκυπλμωςδγχθφβάέίόήύώξζψΑΟΙΕΤΣΝΗΡΚΥΠΛΜΩΔΓΧΘΦΒΞΖΨΆΈΊΌΉΎΏϊΐϋΰ«»’·–€“”…\xa0"
HEBREW = "יוהלאתבמרשנדכעחפקםגטסצזןךףץ–“”₪’…\xa0"
ARABIC = "اليمنترومبعدةسفهكقحجىأشصطخذإضغثظءئآؤ،؟ًٌٍَُِّْپچگژ«»–“”…\xa0"
THAI = "านรกเอ่้มงลยิัตวีดสทบปคจหุะแูพขไใำ์ชโผ็ศฟซถธณษภฐญๆฉฎฏฆฌฒฑฬฮ฿–“”…\xa0"
ENGLISH = "’“”–—…£é°©€®•·½×±µ§«»\xa0™üöèëïàñçáíóâêôäåøßÉ¼¾²³º‘¢"
FRENCH = _with_capitals("éèàêçâôîûùëïœ", "\xa0’«»–…°€“”—")
GERMAN = _with_capitals("äüö", "ß„“–…€°§\xa0é’")
SPANISH = _with_capitals("óíáéñú", "ü¿¡º–“”«»…€\xa0’ªç")
PORTUGUESE = _with_capitals("ãçáéíóõêúâàô", "ºª–“”…€\xa0’ü")
ITALIAN = _with_capitals("àèéùòì", "’“”«»…€°–\xa0")
CATALAN = _with_capitals("óàéèçíòúïü", "·’«»–…\xa0“”")
ALBANIAN = _with_capitals("ëç", "“”’–…\xa0")
SWEDISH = _with_capitals("äöåé", "–”…\xa0’“§€")  # Finnish too
DANISH = _with_capitals("øåæéü", "–”…\xa0’“«»§€")  # Norwegian too
ICELANDIC = _with_capitals("íáðóúéöýþæ", "„“–…\xa0’€")
ESTONIAN = _with_capitals("äõüö", "„”–…\xa0’“«»€")
POLISH = _with_capitals("ąęłóśżćńź", "„”–…\xa0’")
CZECH = _with_capitals("íáéěšřčžýůúňťďóľäôĺŕ", "„“–…\xa0’")
HUNGARIAN = _with_capitals("áéíóöőúüű", "„”–…\xa0’»«")
CROATIAN = _with_capitals("čšžćđ", "„“–…\xa0’”")
ROMANIAN = _with_capitals("ăîâşţ", "„”–…\xa0’")
TURKISH = "ıüşğçöİŞÇÖÜĞâîû’“”–…\xa0"
LITHUANIAN = _with_capitals("ėšįųąčžęū", "„“–\xa0…’")
LATVIAN = _with_capitals("āēīšņļūžķģč", "„“–\xa0…’")

WESTERN = {ENGLISH: 0, **dict.fromkeys((FRENCH, GERMAN, SPANISH), 1)} | dict.fromkeys(
    (PORTUGUESE, ITALIAN, SWEDISH, DANISH, ICELANDIC, ESTONIAN, CATALAN, ALBANIAN), 2
)
ENCODINGS: tuple[tuple[str, Writing, dict[str, int]], ...] = (  # the letters of each language, and its prior cost
    ("cp1252", Writing.LATIN, WESTERN),
    ("cp1250", Writing.LATIN, dict.fromkeys((POLISH, CZECH, HUNGARIAN, CROATIAN, ROMANIAN), 4)),
    ("iso8859-2", Writing.LATIN, dict.fromkeys((POLISH, CZECH, HUNGARIAN), 7)),
    ("cp1254", Writing.LATIN, {TURKISH: 3}),
    ("cp1257", Writing.LATIN, dict.fromkeys((LITHUANIAN, LATVIAN, ESTONIAN), 6)),
    ("cp1251", Writing.ALPHABET, {RUSSIAN: 4, UKRAINIAN: 5, BULGARIAN: 5}),
    ("koi8-r", Writing.ALPHABET, {RUSSIAN: 7}),
    ("koi8-u", Writing.ALPHABET, {UKRAINIAN: 9}),
    ("cp866", Writing.ALPHABET, {RUSSIAN: 8}),
    ("cp1253", Writing.ALPHABET, {GREEK: 5}),
    ("cp1255", Writing.ALPHABET, {HEBREW: 5}),
    ("cp1256", Writing.ALPHABET, {ARABIC: 5}),
    ("cp874", Writing.ALPHABET, {THAI: 7}),
    ("cp932", Writing.CHARACTERS, {JAPANESE: 4}),
    ("euc_jp", Writing.CHARACTERS, {JAPANESE: 7}),
    ("gb18030", Writing.CHARACTERS, {CHINESE: 4}),
    ("cp950", Writing.CHARACTERS, {TRADITIONAL: 4}),
    ("cp949", Writing.CHARACTERS, {KOREAN: 4}),
)


class Candidate(msgspec.Struct, frozen=True):
    """An encoding, and for each of its languages the prior cost and the cost of each character, in bits."""

    codec: str
    writing: Writing
    languages: list[tuple[int, dict[str, float]]]


def guess_charset(data: bytes) -> str | None:
    """The codec for these bytes, which have some beyond ASCII; None if they are hardly text in any encoding."""
    sample = _sample(data)
    bits, codec = min((bits, one.codec) for one in _candidates() for bits in _bits(one, sample))
    return codec if bits <= PER_BYTE_MAX * len(sample) + SHORT_TEXT else None


def _sample(data: bytes) -> bytes:
    """From the line of the first byte beyond ASCII; it ends with a line if there is one to end with."""
    first = BEYOND_ASCII.search(data)
    assert first
    start = max(first.start() - BEFORE_BYTES, 0)
    start = max(start, data.rfind(b"\n", start, first.start()) + 1)
    sample = data[start : start + SAMPLE_BYTES]
    end = sample.rfind(b"\n") if start + SAMPLE_BYTES < len(data) else -1
    return sample[:end] if end > SAMPLE_BYTES // 2 else sample


def _bits(candidate: Candidate, sample: bytes) -> Iterator[float]:
    """How many bits the sample takes in each language of an encoding."""
    text = sample.decode(candidate.codec, "replace")
    unlikely = [(NOT_TEXT, NO_TEXT), *_unlikely(candidate.writing)]
    shared_bits = sum(bits * len(pattern.findall(text)) for pattern, bits in unlikely)
    strange_bits = STRANGE if candidate.writing is Writing.CHARACTERS else STRANGE_LETTER
    counts = Counter(text)
    for prior_bits, bits in candidate.languages:
        letters_bits = sum(count * bits.get(char, strange_bits) for char, count in counts.items())
        yield prior_bits + shared_bits + letters_bits


@cache
def _candidates() -> list[Candidate]:
    made = list[Candidate]()
    for codec, writing, languages in ENCODINGS:
        common = ASCII_BITS | dict.fromkeys(_common_characters(codec), COMMON)
        known = [(prior_bits, common | _bits_of_letters(letters)) for letters, prior_bits in languages.items()]
        made.append(Candidate(codec, writing, known))
    return made


def _bits_of_letters(letters: str) -> dict[str, float]:
    """By Zipf's law: the frequency of a letter is one by its rank."""
    total = math.log2(sum(1 / (rank + RANK_SHIFT) for rank in range(1, len(letters) + 1)))
    return {letter: math.log2(rank + RANK_SHIFT) + total for rank, letter in enumerate(letters, 1)}


def _common_characters(codec: str) -> set[str]:
    if codec not in COMMON_CHARACTERS:
        return set()
    source, first, last, trails = COMMON_CHARACTERS[codec]
    pairs = (bytes((lead, trail)) for lead in range(first, last + 1) for trail in trails)
    return set("".join(pair.decode(source, "ignore") for pair in pairs))


@cache
def _unlikely(writing: Writing) -> list[tuple[re.Pattern[str], float]]:
    """Patterns that are rare in a way of writing, and the cost of each match."""
    if writing is Writing.CHARACTERS:
        return [(BESIDE_ASCII, MIXED)]
    beyond = [chr(code) for code in range(0x80, 0x530)]
    small, capital = "".join(filter(str.islower, beyond)), "".join(filter(str.isupper, beyond))
    inner_capitals = re.compile(f"[a-z{small}][{capital}]|[{small}][A-Z]")
    if writing is Writing.ALPHABET:
        return [(BESIDE_ASCII, MIXED), (inner_capitals, INNER_CAPITAL)]
    return [(SIDE_BY_SIDE, DOUBLE), (INNER_SIGNS, INNER_SIGN), (inner_capitals, INNER_CAPITAL)]
