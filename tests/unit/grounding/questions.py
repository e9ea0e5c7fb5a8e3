"""Questions to the made-up handbook in handbook/, with the answers that it has, and questions that it cannot answer.

`ANSWERED` and `UNANSWERED` chose the bounds of the local engine.
"""

import msgspec


class Answered(msgspec.Struct, frozen=True):
    """A question, the file that has the answer, and words of the passage that has it."""

    question: str
    path: str
    answer: str


REFUNDS, LEAVE, EXPENSES = "policies/refunds.md", "policies/leave.md", "policies/expenses.md"
COMPUTERS, OFFICE = "it/computers.md", "office.txt"

ANSWERED = (
    Answered("How many days does a customer have to send a lamp back?", REFUNDS, "within 45 days of delivery"),
    Answered("Do we refund the delivery costs?", REFUNDS, "Delivery costs are not refunded"),
    Answered("What does the guarantee cover?", REFUNDS, "guarantee of five years"),
    Answered("Who has to approve a refund of more than 400 euros?", REFUNDS, "head of sales must approve"),
    Answered("Can a lamp with an engraved base be returned?", REFUNDS, "cannot\nbe sent back"),
    Answered("How many days of paid holiday do I get per year?", LEAVE, "27 days of paid holiday"),
    Answered("When do carried over holidays expire?", LEAVE, "last day of March"),
    Answered("When do I need a note from a doctor if I am ill?", LEAVE, "From the third day"),
    Answered("How long is parental leave after the birth of a child?", LEAVE, "sixteen weeks of paid leave"),
    Answered("Can I take a sabbatical?", LEAVE, "sabbatical of up to three months"),
    Answered("What may a hotel in London cost?", EXPENSES, "in London and\nZurich up to 190 euros"),
    Answered("How much do I get per kilometre if I drive my own car?", EXPENSES, "23 cents for each kilometre"),
    Answered("Until when do I have to hand in receipts?", EXPENSES, "Receipts older than 90 days"),
    Answered("What should I do if I lost my company credit card?", EXPENSES, "Report a lost card"),
    Answered("How many characters must my main password have?", COMPUTERS, "at least 16 characters"),
    Answered("I clicked on a link in a suspicious e-mail, what now?", COMPUTERS, "unplug the network cable"),
    Answered("Does the VPN work outside the European Union?", COMPUTERS, "VPN called Drawbridge"),
    Answered("When does the building open in the morning?", OFFICE, "opens at seven in the morning"),
    Answered("Where do we meet after a fire alarm?", OFFICE, "next to the chestnut tree"),
    Answered("How much does lunch in the canteen cost?", OFFICE, "costs 4.50 euros"),
    Answered("Within what time is the money paid back to the card?", REFUNDS, "within six working days"),
    Answered("How long can spare switches be ordered?", REFUNDS, "twelve years after"),
    Answered("Which system do we open a return in?", REFUNDS, "Open a return in Basket"),
    Answered("Is a dropped glass covered by the guarantee?", REFUNDS, "glass that was dropped"),
    Answered("Until what time do I have to call in if I'm ill?", LEAVE, "before half past nine"),
    Answered("Is the company closed at Christmas?", LEAVE, "closed between Christmas and New Year"),
    Answered("How many days off do I get for my wedding?", LEAVE, "two for your own wedding"),
    Answered("Is my salary paid during illness?", LEAVE, "salary is paid in full for eight weeks"),
    Answered("Can I fly to a meeting that is 500 kilometres away?", EXPENSES, "flights within a distance"),
    Answered("What is the daily allowance for meals abroad?", EXPENSES, "38 euros for each whole day abroad"),
    Answered("Which app do I use to photograph receipts?", EXPENSES, "app Pennywise"),
    Answered("How expensive may a gift to a customer be?", EXPENSES, "50 euros at most"),
    Answered("Which laptop do designers get?", COMPUTERS, "MacBook Air for the design team"),
    Answered("What do I do when my laptop was stolen?", COMPUTERS, "wiped from afar"),
    Answered("How long are backups kept?", COMPUTERS, "kept for 60 days"),
    Answered("Where should I keep my passwords?", COMPUTERS, "Vaultwarden"),
    Answered("Which meeting room has a projector?", OFFICE, "Dommel has the\nprojector"),
    Answered("Can I bring my dog to the office?", OFFICE, "Dogs are welcome on Fridays"),
    Answered("How do I reserve a desk?", OFFICE, "app Perch"),
    Answered("Where is the defibrillator?", OFFICE, "defibrillator hang beside the lift"),
)
UNANSWERED = (
    "What is the capital of Australia?",
    "Who wrote Pride and Prejudice?",
    "Explain photosynthesis in one sentence.",
    "What is 17 times 23?",
    "Solve x^2 - 5x + 6 = 0.",
    "Hello, how are you today?",
    "Thanks, that was very helpful!",
    "Tell me a joke about cats.",
    "Write a haiku about the sea.",
    "How many people live in Canada?",
    "How do I reverse a list in Python?",
    "What is the boiling point of water at sea level?",
    "Translate 'good morning' into Spanish.",
    "Who was the first person on the moon?",
    "How do I cook rice?",
    "What is the difference between TCP and UDP?",
    "Can you recommend a book about the Roman empire?",
    "Who are you, and what can you do?",
    "When did the second world war end?",
    "Give me three ideas for a birthday present for my mother.",
    "Who painted the Mona Lisa?",
    "What is the square root of 144?",
    "How tall is Mount Everest?",
    "Good evening! Nice weather, isn't it?",
    "How do vaccines work?",
    "Write a limerick about a programmer.",
    "What is a monad?",
    "Summarise the plot of Hamlet.",
    "How far is the moon from the earth?",
    "Is it going to rain tomorrow?",
    "What does HTTP status 404 mean?",
    "Name five rivers in Europe.",
    "How many days are in a leap year?",
    "What is the best way to learn French?",
    "Convert 20 degrees Celsius to Fahrenheit.",
    "I feel sad today.",
    "Draft a short e-mail to my landlord about a broken heater.",
    "Which planets have rings?",
    "What's the derivative of sin(x)?",
    "How do I change a bicycle tyre?",
)
