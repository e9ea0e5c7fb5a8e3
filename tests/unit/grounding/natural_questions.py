"""Questions in the words of people, to the handbook and to the folder nordlys/, which are in one index.

`NATURAL_ANSWERED` and `NATURAL_UNANSWERED` chose the words that do not count, and the soft words, of the local engine.
`HELD_OUT_ANSWERED` and `HELD_OUT_UNANSWERED` were written after that and changed nothing.
"""

from tests.unit.grounding.questions import COMPUTERS, EXPENSES, LEAVE, OFFICE, REFUNDS, Answered

CONTACTS, HOLIDAY, MINUTES = "people/contacts.md", "HolidayPolicy2026.txt", "minutes/board-march.md"
RATES = "freight-rates.csv"

NATURAL_ANSWERED = (
    Answered("Summarise the holiday policy", HOLIDAY, "35 days of holiday"),
    Answered("What is the phone number of Per Dahl?", CONTACTS, "+47 555 0142"),
    Answered("Who is head of logistics at Nordlys, and what is the phone number?", CONTACTS, "Per Dahl is head"),
    Answered("What does HolidayPolicy2026.txt say?", HOLIDAY, "35 days of holiday"),
    Answered("Compare the holiday of crew and office staff in a table", HOLIDAY, "office staff 25"),
    Answered("Give me an overview of the board minutes from March", MINUTES, "Minutes of the board"),
    Answered("Write a short summary of board-march.md", MINUTES, "Minutes of the board"),
    Answered("Draft an email to Ingrid Solheim about customs insurance", CONTACTS, "ingrid@nordlys.example"),
    Answered("List the prices for containers from Bergen to Gdansk", RATES, "740"),
    Answered("Can you look up how much a refrigerated container to Helsinki costs?", RATES, "1420"),
    Answered("Translate our refund rules into German", REFUNDS, "within 45 days of delivery"),
    Answered("Explain the guarantee for lamps to a customer in simple words", REFUNDS, "guarantee of five years"),
    Answered("According to the handbook, what is the allowance for meals abroad?", EXPENSES, "38 euros for each whole"),
    Answered("What's the deadline for claims and who approves them above 500 euros?", EXPENSES, "signature of Femke"),
    Answered("hey, quick question: is there a limit on the price of a hotel?", EXPENSES, "up to 140 euros"),
    Answered("What email address does Ingrid have?", CONTACTS, "ingrid@nordlys.example"),
    Answered("Which documents say something about sabbaticals?", LEAVE, "sabbatical of up to three months"),
    Answered("Show me the steps for opening a return", REFUNDS, "Open a return in Basket"),
    Answered("Who should I contact about a lost token?", COMPUTERS, "If you lose the token"),
    Answered("Tell me the name of the cook in the canteen.", OFFICE, "the cook, Beatriz"),
)
NATURAL_UNANSWERED = (
    "Summarise the theory of relativity",
    "What is the phone number of the White House?",
    "Who is the head of state of Japan, and what is the name of the capital?",
    "What does package.json do in a Node project?",
    "Compare cats and dogs in a table",
    "Give me an overview of the history of Norway",
    "Write a short poem about a ship at sea",
    "Draft an email to my teacher about a missed exam",
    "List the prime numbers below 50",
    "Can you look up the price of gold?",
    "Translate 'where is the station' into Polish",
    "Explain quantum computing to a child in simple words",
    "What is the maximum speed of a container ship?",
    "Who discovered penicillin and in which year?",
    "hey, quick question: how do I sort a dictionary by value?",
    "What is the email address of the president?",
    "Which documents do I need to get married in Denmark?",
    "Show me the steps to install Docker on Ubuntu",
    "Who should I vote for in the election?",
    "Tell me the name of the longest river in Poland.",
)
HELD_OUT_ANSWERED = (
    Answered("Please summarize the minutes of the last board meeting in three bullet points", MINUTES, "dry dock"),
    Answered("How can I reach Tomasz Wilk by phone?", CONTACTS, "+48 555 0118"),
    Answered("Who runs the warehouse in Gdansk and who is the deputy?", CONTACTS, "Agata Nowak"),
    Answered("What is in freight-rates.csv?", RATES, "Bergen to Gdansk"),
    Answered("Make a table of the freight rates between Oslo and Rotterdam", RATES, "690"),
    Answered("How large is the budget for the rudder repair?", MINUTES, "2.1 million kroner"),
    Answered("Why did fuel become more expensive, and what is the surcharge now?", MINUTES, "becomes 6 percent"),
    Answered("When does the terminal in Gdansk open?", MINUTES, "2 September"),
    Answered("Do we buy a fourth vessel?", MINUTES, "decided against the purchase"),
    Answered("Explain to a new crew member how to request holiday", HOLIDAY, "roster system Tide"),
    Answered("What happens to unused holiday at the end of December?", HOLIDAY, "paid out in January"),
    Answered("Our ship has engine trouble in the middle of the night, whom do I call?", CONTACTS, "duty officer"),
    Answered("What does expenses.md say about hotels?", EXPENSES, "up to 140 euros"),
    Answered("Write a reply to a customer who wants to return an engraved lamp", REFUNDS, "engraved base"),
    Answered("Is there a policy on dogs in the office?", OFFICE, "Dogs are welcome on Fridays"),
    Answered("Outline the process after a laptop was stolen.", COMPUTERS, "wiped from afar"),
    Answered("What are the opening hours of the building?", OFFICE, "opens at seven in the morning"),
    Answered("Which number do I call when I clicked a phishing link?", COMPUTERS, "unplug the network cable"),
    Answered("Hi! Could you tell me the rules for parental leave, please?", LEAVE, "sixteen weeks of paid leave"),
    Answered("I need the contact details of the customs person at Nordlys", CONTACTS, "Ingrid Solheim leads customs"),
)
HELD_OUT_UNANSWERED = (
    "Please summarize the French Revolution in three bullet points",
    "How can I reach the summit of Kilimanjaro?",
    "Who runs Microsoft and who founded it?",
    "What is in a Caesar salad?",
    "Make a table of the planets and their distance from the sun",
    "How large is the population of Brazil?",
    "Why did the dinosaurs become extinct, and when?",
    "When does daylight saving time start in the United States?",
    "Do penguins have knees?",
    "Explain to a beginner how to invest in shares",
    "What happens to a star at the end of its life?",
    "My computer makes a strange noise, what could it be?",
    "What does the Bible say about forgiveness?",
    "Write a reply to a friend who wants to borrow money",
    "Is there a vaccine against malaria?",
    "Outline a novel about a lighthouse keeper.",
    "What are the opening moves of the Sicilian defence?",
    "Which number comes next: 2, 4, 8, 16?",
    "Hi! Could you tell me a fun fact, please?",
    "I need a recipe for pancakes without eggs",
)
