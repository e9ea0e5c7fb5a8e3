"""Text that is not UTF-8 and says nothing of its encoding: lists, letters, pages and e-mails of many languages."""

import pytest

from cadenza.parts.grounding.files.formats.charsets import guess_charset
from cadenza.parts.grounding.files.formats.read import read_document, read_page

RUSSIAN = ("Артикул;Название;Цена;Количество", "Договор вступает в силу с момента подписания обеими сторонами.")
POLISH = (
    "Imię;Nazwisko;Miejscowość;Kwota złożona",
    "Wszystkie opłaty należy wnieść do końca miesiąca, także za żywność.",
)
JAPANESE = ("商品名,数量,単価,合計金額,備考", "来週の会議は火曜日の午後に変更になりました。よろしくお願いします。")
TEXTS: dict[str, tuple[str, str]] = {  # the head of a list, and a sentence
    "cp932": JAPANESE,
    "euc_jp": JAPANESE,
    "gb18030": ("姓名,电话,地址,订单编号,金额", "请在星期五之前确认订单，并把发票寄到公司地址。"),
    "big5": ("姓名,電話,地址,訂單編號,金額", "請在星期五之前確認訂單，並把發票寄到公司地址。"),
    "cp949": ("이름,전화번호,주소,주문번호,금액", "다음 주 회의는 화요일 오후로 변경되었습니다. 확인 부탁드립니다."),
    "cp1251": RUSSIAN,
    "koi8-r": RUSSIAN,
    "cp866": RUSSIAN,
    "koi8-u": ("Назва;Ціна;Кількість;Місто", "Її рішення набирає чинності від дня підписання обома сторонами."),
    "cp1253": ("Όνομα;Διεύθυνση;Τηλέφωνο;Ποσό", "Η συνάντηση της επόμενης εβδομάδας μεταφέρθηκε στην Τρίτη."),
    "cp1254": (
        "Adı;Soyadı;Şehir;Ödeme günü;Tutarı",
        "Toplantı önümüzdeki salı gününe ertelendi, lütfen katılımınızı bildirin.",
    ),
    "cp1255": ("שם,כתובת,טלפון,סכום,הערות", "הפגישה נדחתה ליום שלישי בשעה עשר בבוקר."),
    "cp1256": ("الاسم,العنوان,الهاتف,المبلغ", "تم تأجيل الاجتماع إلى يوم الثلاثاء القادم في الساعة العاشرة."),
    "cp1250": POLISH,
    "iso8859-2": POLISH,
    "cp874": ("ชื่อ,ที่อยู่,โทรศัพท์,จำนวนเงิน", "การประชุมสัปดาห์หน้าเลื่อนไปเป็นวันอังคาร"),
    "cp1252": ("Größe;Straße;Gebühr;Prüfung", "Les élèves ont reçu leurs diplômes à l’école dès le début de l’été."),
}
WESTERN = (
    "The café opens at nine — bring £5.",
    "Price: 20 €",
    "It’s “fine”, isn’t it?",
    "21°C ± 2",
    "5 × 3 = 15 µm",
    "id,name\n1,Zoë\n",
    "sí;no;quizás",
    "Mercoledì",
    "É só amanhã",
    "Smørrebrød på Åland",
    "name,city\n1,Düsseldorf\n2,Köln\n",
    "Perché no? È già così.",
    "© 2026 Acme®",
)


def read(data: bytes, name: str = "list.csv") -> str:
    return read_document(name, "", data)[0].text


@pytest.mark.parametrize("codec", TEXTS)
def test_an_encoding_is_guessed_from_little_text(codec: str) -> None:
    """The head of a list with a few rows of numbers, and a single sentence, are read as they were written."""
    head, sentence = TEXTS[codec]
    text = f"{head}\n1;2026-11-16;14.50\n2;2026-11-17;3.99"
    assert (read(text.encode(codec)), read(sentence.encode(codec))) == (text, sentence)


@pytest.mark.parametrize("text", WESTERN)
def test_western_text_is_not_taken_for_anything_else(text: str) -> None:
    """A few accents, signs or quotation marks among ASCII are Windows-1252."""
    assert read(text.encode("cp1252")) == text.strip()


def test_utf_8_is_never_guessed() -> None:
    """Valid UTF-8 is read as such, however it would read in another encoding."""
    texts = [text for both in TEXTS.values() for text in both] + ["联通", "Ã©", "ÐŸ", "é"]
    assert [read(text.encode(), "a.txt") for text in texts] == texts


def test_the_text_decides_wherever_it_begins() -> None:
    """A long file in ASCII with one line in another encoding at its end is read in this encoding."""
    text = "x = 1\n" * 100_000 + "# " + JAPANESE[1]
    assert read(text.encode("cp932"), "a.py") == text


def test_one_broken_character_does_not_spoil_a_text() -> None:
    """It is shown as such, and the others are read."""
    data = JAPANESE[1].encode("cp932")
    assert read(data + b"\x85\n" + data) == f"{JAPANESE[1]}\ufffd\n{JAPANESE[1]}"


def test_bytes_that_are_hardly_text_have_no_encoding() -> None:
    """If every encoding finds them surprising, none is guessed."""
    assert guess_charset(bytes(128 + (41 + 73 * number) % 128 for number in range(128))) is None


@pytest.mark.parametrize("said", ["", "; charset=utf-8", "; charset=us-ascii", "; charset=x-unknown"])
def test_a_page_whose_charset_is_wrong_or_missing(said: str) -> None:
    """Its bytes decide, as in a file."""
    page = f"<html><title>{JAPANESE[0]}</title><body><p>{JAPANESE[1] * 9}</p></body></html>".encode("cp932")
    found = read_page("https://example.org/", f"text/html{said}", page)
    assert found.title == JAPANESE[0]
    assert JAPANESE[1] in found.sections[0].text


@pytest.mark.parametrize(
    ("said", "codec"),
    [
        ("", "cp1251"),
        ("; charset=utf-8", "cp1251"),
        ("; charset=us-ascii", "koi8-r"),
        ("; charset=iso-8859-1", "utf-8"),
    ],
)
def test_an_e_mail_whose_charset_is_wrong_or_missing(said: str, codec: str) -> None:
    """Its bytes decide; valid UTF-8 that is said to be Latin-1 is UTF-8."""
    head = f"From: a@example.org\nContent-Type: text/plain{said}\nContent-Transfer-Encoding: 8bit\n\n"
    assert RUSSIAN[1] in read(head.encode() + RUSSIAN[1].encode(codec), "a.eml")
