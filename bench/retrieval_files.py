"""Twenty files like those that people attach, and fifty questions with what answers each of them.

All of it is made from a seed: the companies, people and figures do not exist. `bench.retrieval` measures with them.
"""

import csv
import io
import json
import random
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.office import docx_of, eml_of, pdf_of, pptx_of, xlsx_of

SEED = 26
FIRST = ("Ar", "Bel", "Cor", "Dan", "El", "Far", "Gil", "Hol", "Is", "Jor", "Kal", "Lun", "Mar", "Nor", "Os", "Per")
LAST = ("amund", "bereth", "cassin", "dorel", "evane", "fennor", "grath", "hollin", "imsen", "jorvik", "kestral")
CITIES = ("Ostby", "Lindal", "Merrow", "Tarnfield", "Vessel Bay", "Quarry Hill", "Norhaven", "Saltmere")
PRODUCTS = ("oak desk", "steel shelf", "wool blanket", "copper kettle", "glass lamp", "linen curtain", "cork board")
REGIONS = ("North", "South", "East", "West", "Central")
TEXTS = tomllib.loads(Path(__file__).with_name("retrieval_texts.toml").read_text(encoding="utf-8"))
SENTENCES = {name: [*TEXTS["topics"].split("\n"), *text.split("\n")] for name, text in TEXTS.items()}
SENTENCES[""] = TEXTS["topics"].split("\n")


class AttachedFile(msgspec.Struct, frozen=True):
    """A file as a client would attach it."""

    name: str
    data: bytes


class Question(msgspec.Struct, frozen=True):
    """A question about a file. `needs` are the words that answer it: all of them must be sent.

    `before` is the message before it, if it is a follow-up.
    """

    file: str
    text: str
    needs: tuple[str, ...]
    before: str = ""


class Maker:
    """Makes the files one after the other, and notes the questions to each."""

    def __init__(self) -> None:
        self.files: list[AttachedFile] = []
        self.questions: list[Question] = []
        self._chance = random.Random()  # noqa: S311 it chooses words

    def make(self, makers: Iterable[Callable[["Maker"], None]]) -> None:
        for one in makers:
            self._chance.seed(f"{SEED} {one.__name__}")  # a file is the same whatever is made before it
            one(self)

    def add(self, name: str, data: bytes | str) -> None:
        self.files.append(AttachedFile(name, data if isinstance(data, bytes) else data.encode()))

    def ask(self, text: str, *needs: str, before: str = "") -> None:
        """A question about the file that was added last."""
        self.questions.append(Question(self.files[-1].name, text, needs, before))

    def pick(self, choices: Sequence[str]) -> str:
        return self._chance.choice(choices)

    def number(self, low: int, high: int) -> int:
        return self._chance.randint(low, high)

    def tens(self) -> int:
        return self.number(10, 900) * 10

    def person(self) -> str:
        return f"{self.pick(FIRST)}{self.pick(('a', 'en', 'is', 'o'))} {self.pick(FIRST)}{self.pick(LAST)}"

    def date(self) -> str:
        return f"2025-{self.number(1, 12):02}-{self.number(1, 28):02}"

    def filler(self, sentences: int, noise: str = "") -> str:
        return " ".join(f"{self.pick(SENTENCES[noise])}." for _ in range(sentences))

    def paragraphs(self, count: int, facts: dict[int, str], noise: str) -> list[str]:
        """Paragraphs of which some have a fact between other sentences."""
        texts = list[str]()
        for place in range(count):
            before, after = self.filler(2, noise), self.filler(2, noise)
            texts.append(f"{before} {facts[place]} {after}" if place in facts else f"{before} {after}")
        return texts


def rows_text(rows: Sequence[Sequence[object]], delimiter: str = ",") -> str:
    target = io.StringIO()
    csv.writer(target, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return target.getvalue()


def line_of(row: Sequence[object], delimiter: str = ",") -> str:
    return rows_text([row], delimiter).strip()


def orders(made: Maker) -> None:
    rows = [
        (
            *(f"ORD-{100_000 + number}", made.date(), f"Customer{40_000 + number * 7919 % 30_000}"),
            *(made.pick(PRODUCTS), made.pick(REGIONS), made.number(1, 40), f"{made.number(500, 99_999) / 100:.2f}"),
        )
        for number in range(24_000)
    ]
    head = ("order", "date", "customer", "product", "region", "quantity", "amount")
    made.add("orders.csv", rows_text([head, *rows]))
    one, other, third, fourth = rows[len(rows) // 3], rows[-17], rows[41], rows[len(rows) // 2]
    made.ask(f"amount of {one[2]}?", ",".join(head), line_of(one))
    made.ask(f"Which product did customer {other[2].removeprefix('Customer')} order, and when?", line_of(other))
    made.ask(f"What is in order {third[0].removeprefix('ORD-')}?", line_of(third))
    bought = [line_of(row) for row in rows if row[2] in (one[2], fourth[2])]
    made.ask(f"Compare what {one[2]} and {fourth[2]} bought.", *bought)
    made.ask(f"What is the total of all orders by {fourth[2]}?", *[line for line in bought if fourth[2] in line])


def staff(made: Maker) -> None:
    rows = [
        (
            *(number, made.person(), made.pick(CITIES), made.pick(("Sales", "Design", "Finance", "Stores", "Legal"))),
            *(f"+00 555 {made.number(1000, 9999)}", made.number(28, 95) * 1000),
        )
        for number in range(1, 1234)
    ]
    made.add("staff.csv", rows_text([("No", "Name", "Office", "Department", "Phone", "Salary"), *rows], ";"))
    one, other = rows[len(rows) // 2], rows[-3]
    made.ask(f"What is the phone number of {one[1]}?", line_of(one, ";"))
    made.ask(f"In which office does {other[1].split()[1]} work?", line_of(other, ";"))
    legal = [line_of(row, ";") for row in rows if row[3] == "Legal" and row[2] == "Saltmere"]
    made.ask("Who works in Legal in Saltmere?", *legal)


def sensors(made: Maker) -> None:
    hours = [(day, hour) for day in range(200) for hour in range(24)]
    times = [f"2025-{1 + day // 28:02}-{1 + day % 28:02} {hour:02}:00" for day, hour in hours]
    rows = [(time, f"{made.number(-90, 310) / 10}", made.number(20, 95)) for time in times]
    made.add("sensors.tsv", rows_text([("time", "temperature_c", "humidity_pct"), *rows], "\t"))
    one, other = rows[len(rows) // 2], rows[-30]
    made.ask(f"How warm was it on {one[0][:10]} at {one[0][11:]}?", line_of(one, "\t"))
    made.ask(f"humidity at {other[0]}", line_of(other, "\t"))


def tickets(made: Maker) -> None:
    rows = [
        (f"T-{2000 + number}", made.person(), made.pick(("open", "closed")), f"{made.filler(1)}\n{made.filler(1)}")
        for number in range(1500)
    ]
    special = (rows[700][0], "Isa Corhollin", "open", 'The scanner prints\n"E-778" and stops, then beeps.')
    rows[700] = special
    made.add("tickets.csv", rows_text([("ticket", "reported_by", "state", "text"), *rows]))
    made.ask("Which ticket is about error E-778?", f"{special[0]},Isa Corhollin,open", "and stops, then beeps")
    made.ask(f"What did the person of ticket {rows[-9][0]} report?", line_of(rows[-9])[:40])


def inventory(made: Maker) -> None:
    skus = [f"SKU{made.number(10, 99)}-{4000 + number}" for number in range(3000)]
    shelves = [f"{chr(65 + number % 23)}{number % 61}" for number in range(len(skus))]
    stock: list[Sequence[object]] = [("SKU", "Item", "Shelf", "Units", "Unit price")]
    for sku, shelf in zip(skus, shelves, strict=True):
        stock.append((sku, made.pick(PRODUCTS), shelf, made.number(0, 400), made.number(100, 9000) / 100))
    suppliers: list[Sequence[object]] = [("Supplier", "City", "Lead time (days)", "Contact")]
    for number in range(120):
        name = f"{made.pick(FIRST)}{made.pick(LAST).title()} Works {number}"
        suppliers.append((name, made.pick(CITIES), number % 40, made.person()))
    suppliers.append(("Velmora Timber", "Lindal", 37, "Osen Kalimsen"))
    rates = (("Country", "VAT"), ("Ardenia", 0.19), ("Belmark", 0.21), ("Corvania", 0.255))
    made.add("inventory.xlsx", xlsx_of({"Stock": stock, "Suppliers": suppliers, "Rates": rates}))
    made.ask(f"How many units of {skus[len(skus) // 2]} are in stock?", "| A | B | C | D | E |", skus[len(skus) // 2])
    made.ask(f"On which shelf is item {skus[-5]}?", skus[-5])
    made.ask("What is the lead time of Velmora Timber?", "Velmora Timber | Lindal | 37", "Lead time (days)")
    made.ask("Which VAT rate does Corvania have?", "Corvania | 0.255")


def budget(made: Maker) -> None:
    rows = list[tuple[str, str, int, int]]()
    for centre in range(110):
        for month in ("January", "February", "March", "April", "May", "June"):
            name, (planned, spent) = f"CC{300 + centre} {made.pick(CITIES)}", (made.tens(), made.tens())
            rows.append((name, month, planned, spent))
    made.add("budget.xlsx", xlsx_of({"Budget 2026": [("Cost centre", "Month", "Planned", "Spent"), *rows]}))
    march, may = (next(row for row in rows if row[0][:5] == "CC341" and row[1] == one) for one in ("March", "May"))
    asked = "What was planned for CC341 in March?"
    made.ask(asked, f"{march[0]} | March | {march[2]}")
    made.ask("And in May?", f"{may[0]} | May | {may[2]}", before=asked)


def manual(made: Maker) -> None:
    names, texts, facts, pages = [f"{first}{last}" for first in FIRST for last in LAST], list[str](), list[str](), 300
    for page in range(pages):
        name, oil, rpm = names[page % len(names)].title(), made.number(11, 99) / 10, made.number(20, 49) * 50
        fact = f"The pump {name} {page} needs {oil} litres of oil and runs at {rpm} revolutions per minute."
        if page == pages * 2 // 3:
            fact = (
                "If the red lamp blinks three times, close valve V7 and wait for ten minutes before you open the lid."
            )
        if page == pages // 5:
            fact = "The housing may be cleaned with mild soap only; solvents make the seals brittle."
        facts.append(fact)
        texts.append(f"{made.filler(9, 'manual')} {fact} {made.filler(9, 'manual')}")
    made.add("manual.pdf", pdf_of(texts))
    for page in (pages // 2, pages - 4):
        made.ask(f"How much oil does the {' '.join(facts[page].split()[2:4])} take?", facts[page])
    made.ask("What should I do when the red lamp blinks?", "close valve V7")
    made.ask("Can I clean the housing with solvent?", "mild soap only")
    before = "What does it mean if the red lamp blinks?"
    made.ask("And how long do I have to wait then?", "wait for ten minutes", before=before)


def annual(made: Maker) -> None:
    facts = {
        31: "Net profit rose to 14.2 million crowns, from 11.9 million the year before.",
        44: "The company had 1,846 employees at the end of the year, of whom 41 percent were women.",
        52: "The dividend proposed to the general meeting is 2.35 crowns per share.",
    }
    pages = (f"{made.filler(12, 'annual')} {facts.get(page, '')} {made.filler(6, 'annual')}" for page in range(60))
    made.add("annual_report.pdf", pdf_of(pages))
    made.ask("How high was the net profit?", "14.2 million crowns")
    made.ask("How many people worked there at the end of the year?", "1,846 employees")
    made.ask("What dividend is proposed?", "2.35 crowns per share")


def lease(made: Maker) -> None:
    facts = {
        23: "The rent is 1,480 crowns a month, payable on the third working day.",
        58: "Animals may be kept only with the written consent of the landlord; fish and small birds are free.",
        91: "Either party may terminate the lease with three months' notice to the end of a quarter.",
        140: "The deposit is two months' rent and bears interest at one percent a year.",
    }
    clauses = [
        (f"Clause {number}", [text]) for number, text in enumerate(made.paragraphs(180, facts, "lease"), start=1)
    ]
    made.add("lease.docx", docx_of(clauses, 2, "Lease of Quarry Hill 9"))
    made.ask("How high is the rent, and when is it due?", "1,480 crowns a month")
    made.ask("Am I allowed to have a dog?", "Animals may be kept only")
    made.ask("How do I terminate the lease?", "three months' notice")
    made.ask("Do I get interest on my deposit?", "one percent a year")


def handbook(made: Maker) -> None:
    facts = {37: "Employees have 28 days of paid leave a year; unused days expire in March."}
    parts = [
        (f"{number}. {made.pick(('Rules', 'Travel', 'Safety', 'Office', 'Time'))}", [text])
        for number, text in enumerate(made.paragraphs(90, facts, "handbook"), start=1)
    ]
    rows = [(f"{one} Land", str(made.number(60, 190)), str(made.number(20, 60))) for one in FIRST]
    made.add("handbook.docx", docx_of(parts, table=[("Country", "Hotel limit", "Daily allowance"), *rows]))
    made.ask("How many days of paid leave do I get?", "28 days of paid leave")
    made.ask("What is the hotel limit for Gil Land?", "Hotel limit", "| Gil Land |")


def novel(made: Maker) -> None:
    facts = {
        311: "It was Odalys who had hidden the silver key under the third stair of the boathouse.",
        780: "Captain Brandt confessed that he had sold the map of Tarn Island to the lighthouse keeper.",
    }
    paragraphs = made.paragraphs(1100, facts, "novel")
    for place in range(0, len(paragraphs), 40):
        paragraphs[place] = f"CHAPTER {place // 40 + 1}\n\n{paragraphs[place]}"
    made.add("novel.txt", "\n\n".join(paragraphs))
    made.ask("Who hid the silver key?", "Odalys who had hidden the silver key")
    made.ask("To whom did Captain Brandt sell the map?", "to the lighthouse keeper")
    made.ask("Where was the key?", "third stair of the boathouse", before="Who hid the silver key?")


def minutes(made: Maker) -> None:
    facts = {
        19: "Decision: the Norhaven branch closes on 30 September.",
        61: "Action: Perisa Lungrath orders the new forklift by Friday.",
    }
    parts = [
        f"## Meeting {number + 1}, {made.date()}\n\n{text}"
        for number, text in enumerate(made.paragraphs(80, facts, "minutes"))
    ]
    made.add("minutes.md", "# Minutes\n\n" + "\n\n".join(parts))
    made.ask("When does the Norhaven branch close?", "30 September")
    made.ask("Who is responsible for the forklift?", "Perisa Lungrath orders the new forklift")


def server_log(made: Maker) -> None:
    lines = [
        f"{made.date()}T{made.number(0, 23):02}:{made.number(0, 59):02}:{made.number(0, 59):02}Z "
        f"{made.pick(('INFO', 'INFO', 'INFO', 'WARN'))} worker-{made.number(1, 9)} "
        f"request={made.number(16**7, 16**8):08x} took {made.number(3, 900)} ms"
        for _ in range(8000)
    ]
    lines[len(lines) // 2] = "2025-06-14T03:12:09Z ERROR worker-4 disk /dev/vd7 is full: cannot write segment 88213"
    made.add("server.log", "\n".join(lines))
    found = lines[-100].split("request=")[1].split()[0]
    made.ask("Which error happened on worker-4?", "disk /dev/vd7 is full")
    made.ask(f"How long did request {found} take?", lines[-100])


def source_code(made: Maker) -> None:
    functions = [
        f"def {made.pick(('load', 'save', 'check'))}_{made.pick(LAST)}_{number}(items, limit={made.number(1, 99)}):\n"
        f'    """{made.pick(SENTENCES[""])}."""\n    total = 0\n    for item in items[:limit]:\n'
        f"        total += item.weight * {made.number(2, 9)}\n    return total\n"
        for number in range(420)
    ]
    functions[270] = (
        "RETRY_DELAY_S = 7.5  # the gateway drops faster retries\n\n\n"
        "def backoff_delay(attempt):\n    return RETRY_DELAY_S * 2 ** min(attempt, 5)\n"
    )
    made.add("billing.py", '"""Billing of the warehouse."""\n\n\n' + "\n\n".join(functions))
    made.ask("What does backoff_delay return?", "RETRY_DELAY_S * 2 ** min(attempt, 5)")
    made.ask("Why is RETRY_DELAY_S 7.5?", "the gateway drops faster retries")


def catalogue(made: Maker) -> None:
    items = [
        {
            "id": f"P{7000 + number}",
            "name": f"{made.pick(PRODUCTS)} {made.pick(CITIES)}",
            "price": made.number(500, 90_000) / 100,
            "stock": made.number(0, 50),
            "tags": [made.pick(REGIONS), made.pick(LAST)],
        }
        for number in range(1500)
    ]
    made.add("catalogue.json", json.dumps({"updated": "2026-02-01", "products": items}))
    one = items[len(items) // 2]
    made.ask(f"What does {one['id']} cost?", f'"{one["id"]}"', str(one["price"]))
    other = items[-7]
    made.ask(f"How many pieces of product {other['id']} are left?", f'"{other["id"]}"', f'"stock": {other["stock"]}')


def events(made: Maker) -> None:
    found = []
    for _ in range(4000):
        at, user, event = made.date(), f"u{made.number(1000, 9999)}", made.pick(("login", "view", "buy"))
        found.append((at, user, event, f"10.0.{made.number(0, 255)}.{made.number(0, 255)}"))
    found[len(found) // 4] = ("2025-05-05", "u777x", "password_reset", "10.0.3.77")
    lines = [json.dumps(dict(zip(("at", "user", "event", "ip"), one, strict=True))) for one in found]
    made.add("events.jsonl", "\n".join(lines))
    made.ask("From which IP did u777x reset the password?", lines[len(lines) // 4])


def site_page(made: Maker) -> None:
    facts = {88: "To export your data, open Account, choose Privacy, and press Download archive."}
    parts = "".join(
        f"<h2>Topic {number}</h2><p>{text}</p>" for number, text in enumerate(made.paragraphs(140, facts, "page"))
    )
    rows = [(f"Plan {first}{last}", made.number(5, 90), made.number(1, 500)) for first in FIRST for last in LAST]
    table = "".join(f"<tr><td>{name}</td><td>{price} crowns</td><td>{size} GB</td></tr>" for name, price, size in rows)
    table = f"<table><tr><th>Plan</th><th>Price</th><th>Storage</th></tr>{table}</table>"
    made.add("help.html", f"<!doctype html><html><body><main>{parts}{table}</main></body></html>")
    made.ask("How can I export my data?", "press Download archive")
    plan, price, _ = rows[90]
    made.ask(f"What does {plan} cost?", f"| {plan} | {price} crowns |", "| Plan | Price | Storage |")


def mail_thread(made: Maker) -> None:
    headers = {"Subject": "Re: Shipment 5521", "From": "elen.farjorvik@example.org", "To": "stores@example.org"}
    headers["Date"] = "Tue, 03 Mar 2026 09:12:00 +0000"
    fact = "The container arrives at Vessel Bay on 19 March; customs needs form K-12 before."
    text = "\n\n".join([*made.paragraphs(20, {}, "mail"), fact, *made.paragraphs(60, {}, "mail")])
    rows = [(f"BOX{number}", made.pick(PRODUCTS), made.number(1, 90)) for number in range(1, 900)]
    boxes = rows_text([("box", "content", "kg"), *rows]).encode()
    made.add("shipment.eml", eml_of(headers, text, "boxes.csv", "text/csv", boxes))
    made.ask("Which form does customs need?", "form K-12")
    made.ask("What is in BOX433, and what does it weigh?", line_of(rows[432]))


def slides(made: Maker) -> None:
    launch, shown = "Launch of the Aurel kettle moves to November", list[tuple[str, str]]()
    for number in range(90):
        shown.append((f"{made.pick(REGIONS)} {number}", launch if number == 66 else made.filler(5)))
    made.add("strategy.pptx", pptx_of(shown))
    made.ask("When is the launch of the Aurel kettle?", "moves to November")


def short_note(made: Maker) -> None:
    made.add("parking.txt", f"{made.filler(3)}\n\nVisitors park on level 2; the code of the barrier is 4417.\n")
    made.ask("What is the code of the barrier?", "4417")


PLAIN: tuple[Callable[[Maker], None], ...] = (  # made in a moment
    *(orders, staff, sensors, tickets, novel, minutes, server_log, source_code, catalogue, events, site_page),
    *(mail_thread, short_note),
)
OFFICE: tuple[Callable[[Maker], None], ...] = (inventory, budget, manual, annual, lease, handbook, slides)


def questions_by_file(made: Maker) -> Iterator[tuple[AttachedFile, list[Question]]]:
    for file in made.files:
        yield file, [one for one in made.questions if one.file == file.name]
