// What every page can do: local times, copy buttons, dialogs, questions before a danger, a preview of the theme.
// Each function works on a page that has none of its parts.

const COPIED_MS = 2000;

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// A time in the visitor's own time zone, in the style of the times that the server writes.
export function localTime(at) {
  const clock = [at.getHours(), at.getMinutes()].map((number) => String(number).padStart(2, "0")).join(":");
  return `${at.getDate()} ${MONTHS[at.getMonth()]} ${at.getFullYear()}, ${clock}`;
}

const NANO_DIGITS = 9;

// Nano-dollars of an amount of the API, which is a decimal string.
export function nanoDollars(text) {
  const [whole, part = ""] = text.split(".");
  return BigInt(whole + part.padEnd(NANO_DIGITS, "0"));
}

// Money as the server shows it (dollars in render.py): $1,234.56, $0.0123, −$5.00, <$0.0001.
export function dollars(nano, digits) {
  const size = nano < 0n ? -nano : nano;
  digits ??= size && size < 10n ** 9n ? 4 : 2;
  const step = 10n ** BigInt(NANO_DIGITS - digits);
  const isTiny = size && size < step;
  const units = String(isTiny ? 1n : size / step).padStart(digits + 1, "0");
  const whole = units.slice(0, -digits).replace(/\B(?=(\d{3})+$)/g, ",");
  return `${nano < 0n ? "−" : ""}${isTiny ? "<" : ""}$${whole}.${units.slice(-digits)}`;
}

function showLocalTimes(root = document) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.valueOf())) continue;
    time.title = time.textContent;
    time.textContent = localTime(at);
  }
}

// Says a short text to screen readers.
function announce(text) {
  const region = document.getElementById("announcements") ?? document.body.appendChild(document.createElement("p"));
  region.id = "announcements";
  region.className = "hidden-visually";
  region.setAttribute("role", "status");
  region.textContent = text;
}

// Where the browser has no clipboard (a site without TLS), the text is selected for the person to copy.
async function copy(button) {
  const source = document.getElementById(button.dataset.copyFrom ?? "");
  const text = button.dataset.copy ?? source?.textContent ?? "";
  button.dataset.label ??= button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    if (source) getSelection().selectAllChildren(source);
    button.textContent = source ? "Selected" : "Copy it by hand";
  }
  announce(button.textContent);
  setTimeout(() => (button.textContent = button.dataset.label), COPIED_MS);
}

function openDialog(button) {
  document.getElementById(button.dataset.dialog)?.showModal();
}

const CLICKS = [
  [".copy", copy],
  ["[data-dialog]", openDialog],
  ["dialog [data-close]", (button) => button.closest("dialog").close()],
];

// One listener for all, so that parts which a script adds later work too.
function followClicks() {
  document.addEventListener("click", (event) => {
    for (const [selector, act] of CLICKS) {
      const found = event.target.closest?.(selector);
      if (found) act(found);
    }
  });
}

// A form, or the button that sends it, may carry a question: data-confirm="Revoke this key?". In it {part} is what was
// typed into the field of this name, or its placeholder.
function confirmForms() {
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
    const typed = (place, name) => {
      const field = event.target.elements[name];
      return field ? field.value.trim() || field.placeholder : place;
    };
    if (question && !confirm(question.replace(/\{(\w+)\}/g, typed))) event.preventDefault();
  });
}

// A sign-out deletes what the chat keeps in this browser, if its owner chose so. It waits for that.
function forgetAtSignOut() {
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    const account = form.dataset.signsOut;
    if (!account || localStorage.getItem(`cadenza-chat-${account}:forgets`) !== "on") return;
    event.preventDefault();
    try {
      const { forget } = await import("./chat_files.js");
      await forget(account);
    } catch {
      if (!confirm("Your conversations could not be deleted from this browser. Sign out without that?")) return;
    }
    form.submit();
  });
}

// A form may be answered by a download: the page stays, and its link says where to go from there.
function nameTheWayBack() {
  document.addEventListener("submit", (event) => {
    const link = event.target.querySelector("[data-after-submit]");
    if (link) link.textContent = link.dataset.afterSubmit;
  });
}

// A choice of the theme shows at once; it is kept when its form is sent.
function previewTheme() {
  document.addEventListener("change", (event) => {
    if (event.target.name === "theme") document.documentElement.dataset.theme = event.target.value;
  });
}

// What scrolls sideways can be reached and scrolled by keyboard.
function focusScrollers(root = document) {
  for (const part of root.querySelectorAll(".scroll, pre")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  }
}

// What a tab hid could not be measured before.
function focusInTabs() {
  document.addEventListener("change", (event) => {
    if (event.target.matches(".snippets > input")) focusScrollers(event.target.parentElement);
  });
}

// On a phone a table of three columns and more becomes a list, in which each cell says its column.
function labelCells(root = document) {
  for (const table of root.querySelectorAll(".scroll > table:not(.score)")) {
    const columns = [...table.querySelectorAll("thead tr > *")].map((head) => head.textContent.trim());
    table.classList.toggle("fold", columns.length > 2);
    for (const cell of table.querySelectorAll("tbody td")) {
      cell.classList.toggle("blank", !cell.textContent.trim() && !cell.firstElementChild);
      if (columns[cell.cellIndex]) cell.dataset.column = columns[cell.cellIndex];
    }
  }
}

showLocalTimes();
labelCells();
followClicks();
confirmForms();
forgetAtSignOut();
nameTheWayBack();
previewTheme();
focusScrollers();
focusInTabs();
