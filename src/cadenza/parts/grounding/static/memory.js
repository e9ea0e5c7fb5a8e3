// Counts the characters of a note while it is written. A note that is too long is not sent, and nothing is cut.

const NEAR = 0.8; // of the most characters: from here on the count is shown
const number = (count) => count.toLocaleString("en");

function count(field, shown) {
  const chars = [...field.value.replaceAll("\r\n", "\n").trim()].length;
  const most = Number(field.dataset.charsMax);
  const isOver = chars > most;
  shown.textContent = chars < most * NEAR ? "" : `${number(chars)} of ${number(most)} characters${isOver ? ": shorten the note." : ""}`;
  shown.hidden = !shown.textContent;
  shown.classList.toggle("bad", isOver);
  field.setCustomValidity(isOver ? `A note has at most ${number(most)} characters; this one has ${number(chars)}.` : "");
}

for (const field of document.querySelectorAll("[data-chars-max]")) {
  const shown = document.createElement("p");
  shown.className = "hint";
  shown.setAttribute("aria-live", "polite");
  field.closest("label").after(shown);
  field.addEventListener("input", () => count(field, shown));
  count(field, shown);
}
