// Shows messages. Text is text; the only HTML that is inserted is what our server rendered and cleaned.

import { button, byId, element } from "./chat_elements.js";
import { linkMarkers, sourceList } from "./chat_sources.js";

const NEAR_END_PX = 80;
const QUIET_S = 3;
const FENCE = /^\s*(`{3,}|~{3,})[^\n]*\n?/;

// The one place where HTML becomes elements: `html` is always our server's.
function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

function parseBlocks(html) {
  const blocks = parse(html);
  for (const pre of blocks.querySelectorAll("pre")) {
    const box = pre.parentElement?.classList.contains("code") ? pre.parentElement : null;
    if (box) box.prepend(element("button", { type: "button", className: "quiet copy-code", textContent: "Copy" }));
  }
  return blocks;
}

// What a reply says, without Markdown as far as it is rendered.
export function plainText({ text, html, htmlUnits }) {
  const blocks = parse(html);
  for (const language of blocks.querySelectorAll(".language")) language.after(" ");
  return blocks.textContent + text.slice(htmlUnits);
}

// Shows the balance in the header and the notice of low credit as they are now: the server writes both for this page.
export async function showCredit() {
  const response = await fetch(location.pathname).catch(() => null);
  const page = parse(response?.ok ? await response.text() : "");
  const balance = page.getElementById("balance");
  if (!balance) return;
  byId("balance").replaceWith(balance);
  byId("low-credit")?.remove();
  const notice = page.getElementById("low-credit");
  if (notice) byId("main").prepend(notice);
}

// The part of a reply whose block has not ended: code as code, everything else as text.
class OpenBlock {
  constructor() {
    this.element = element("p", { className: "open-block" });
  }

  show(text) {
    const isCode = FENCE.test(text);
    if (isCode !== (this.element.tagName === "PRE")) {
      const next = element(isCode ? "pre" : "p", { className: "open-block" });
      this.element.replaceWith(next);
      this.element = next;
    }
    this.element.textContent = isCode ? text.replace(FENCE, "") : text;
    this.element.hidden = !text.trim();
  }
}

// One message. An assistant's is shown while it arrives: `add` text, `addBlock` of HTML, then `finish`.
export class MessageView {
  constructor(message) {
    this.message = message;
    this.element = element("article", { className: `message ${message.role}` });
    this.element.setAttribute("aria-label", message.role === "user" ? "You" : "Reply");
    this.foot = element("p", { className: "row" });
    if (message.role === "user") {
      this.files = element("ul", { className: "files", hidden: true });
      this.files.setAttribute("aria-label", "Files");
      const said = element("div", { className: "said", textContent: message.text, hidden: !message.text });
      this.element.append(this.files, said, this.foot);
    } else {
      this.open = new OpenBlock();
      this.element.append(this.open.element, this.foot);
      this.restore();
    }
  }

  // Show what is known of a reply: its HTML, and what is not rendered yet as text.
  restore() {
    const { message } = this;
    while (this.element.firstChild !== this.open.element) this.element.firstChild.remove();
    if (message.reasoning) this.#addReasoning();
    this.open.element.before(parseBlocks(message.html ?? ""));
    this.open.show(message.text.slice(message.htmlUnits));
    this.showSources();
    this.showRead();
  }

  // Until the first words: a mark and, after some seconds, what the wait is for. A screen reader is not told each second.
  begin(hasFiles) {
    const { created, text } = this.message;
    this.element.setAttribute("aria-busy", "true");
    if (text) return;
    this.thinking = element("p", { className: "thinking" });
    this.element.prepend(this.thinking);
    this.timer = setInterval(() => {
      const waited = Math.round((Date.now() - created) / 1000);
      if (waited < QUIET_S) return;
      this.thinking.textContent = this.message.reasoning ? `Thinking … ${waited} s` : `Waiting for the first words … ${waited} s${hasFiles ? " · files are read first" : ""}`;
    }, 1000);
  }

  #endWait() {
    clearInterval(this.timer);
    this.thinking?.remove();
  }

  show() {
    if (this.message.text) this.#endWait();
    this.open.show(this.message.text.slice(this.message.htmlUnits));
  }

  addBlock(html) {
    this.open.element.before(parseBlocks(html));
    this.show();
    if (this.message.sources?.length) linkMarkers(this.element, this.message);
  }

  showSources() {
    this.sources?.remove();
    if (!this.message.sources?.length) return;
    this.sources = sourceList(this.message);
    this.foot.before(this.sources);
    linkMarkers(this.element, this.message);
  }

  // Which parts of long files the model was given.
  showRead() {
    this.read?.remove();
    if (!this.message.read?.length) return;
    const lines = this.message.read.map(({ name, shown }) => element("li", {}, element("bdi", { textContent: name }), `: ${shown}`));
    const list = element("ul", {}, ...lines);
    list.setAttribute("aria-label", "Read in part");
    this.read = element("div", { className: "sources read" }, element("p", { textContent: "Read in part" }), list);
    this.foot.before(this.read);
  }

  showReasoning() {
    if (!this.reasoning) this.#addReasoning();
    this.reasoning.textContent = this.message.reasoning;
  }

  #addReasoning() {
    this.reasoning = element("p", { textContent: this.message.reasoning ?? "" });
    this.open.element.before(element("details", { className: "small muted" }, element("summary", { textContent: "Reasoning" }), this.reasoning));
  }

  finish() {
    this.#endWait();
    this.element.removeAttribute("aria-busy");
  }

  // What stands under the message: what can be done with it, variants and counts, which come last and so move nothing.
  showFoot(note, variants, actions) {
    this.foot.replaceChildren();
    for (const [label, act, className] of actions) this.foot.append(button(label, "", act, className));
    if (variants.count > 1) {
      this.foot.append(
        button("‹", "Earlier version", () => variants.go(-1)),
        element("span", { textContent: `${variants.place} of ${variants.count}` }),
        button("›", "Later version", () => variants.go(1)),
      );
    }
    if (note) this.foot.append(element("span", { textContent: note }));
  }
}

// The list of messages. It follows the end of a reply until the reader scrolls up.
export class Thread {
  constructor(root, empty) {
    this.root = root;
    this.empty = empty;
    root.addEventListener("click", (event) => copyCode(event.target));
  }

  clear() {
    this.root.replaceChildren(this.empty);
    this.empty.hidden = true;
  }

  add(part) {
    this.empty.hidden = true;
    this.root.append(part);
  }

  get isAtEnd() {
    return this.root.scrollHeight - this.root.scrollTop - this.root.clientHeight < NEAR_END_PX;
  }

  toEnd() {
    this.root.scrollTop = this.root.scrollHeight;
  }

  // Change what is shown, and stay at the end if the reader was there.
  keepingEnd(change) {
    const wasAtEnd = this.isAtEnd;
    change();
    if (wasAtEnd) this.toEnd();
  }

  // Says what went wrong and what to do about it. Removed by the next message.
  showError(error, actions = []) {
    this.root.querySelector("[role=alert]")?.remove();
    const box = element("div", { className: "error" });
    box.setAttribute("role", "alert");
    box.append(element("p", { textContent: error.message }));
    if (error.status === 402) box.append(element("a", { className: "button", href: "/credit", textContent: "Add credit" }));
    else if (error.status === 401) box.append(element("a", { className: "button", href: "/sign-in?next=/chat", textContent: "Sign in" }));
    else {
      if (error.waitS) box.append(element("p", { textContent: `Try again in ${error.waitS} ${error.waitS === 1 ? "second" : "seconds"}.` }));
      for (const [label, act] of actions) box.append(button(label, "", act, ""));
    }
    this.root.append(box);
    this.toEnd();
  }
}

async function copyCode(target) {
  if (!target.matches?.(".copy-code")) return;
  await copyText(target, target.parentElement.querySelector("pre").textContent, target.parentElement.querySelector("pre"));
}

// Copies, or, where the browser has no clipboard, selects the text for the person to copy.
export async function copyText(target, text, source) {
  const label = target.textContent;
  try {
    await navigator.clipboard.writeText(text);
    target.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    target.textContent = "Selected";
  }
  setTimeout(() => (target.textContent = label), 2000);
}

// Asks in a dialog. Returns the text that was typed, "yes" where none was asked for, or null.
export function question({ title, text = "", label = "", value = "", rows = 1, yes }) {
  const dialog = byId("question");
  const [input, accept] = [dialog.querySelector("textarea"), dialog.querySelector("[value=yes]")];
  byId("question-title").textContent = title;
  byId("question-text").textContent = text;
  byId("question-text").hidden = !text;
  byId("question-label").hidden = !label;
  byId("question-label").firstElementChild.textContent = label;
  Object.assign(input, { value, rows });
  accept.textContent = yes;
  input.onkeydown = (event) => {
    if (event.key === "Enter" && rows === 1 && !event.isComposing) {
      event.preventDefault();
      dialog.close("yes");
    }
  };
  dialog.returnValue = "no";
  dialog.showModal();
  if (label) input.select();
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue !== "yes" ? null : label ? input.value : "yes");
  });
}
