// The sources of a reply: a list below it, and links from the numbers in its text to that list.
//
// Titles and addresses are strangers' words. They are shown as text, and only an http or https address becomes a link.

import { byId, element } from "./chat_elements.js";

const MARKER = /([[【]\^?\d{1,4}(?: ?[,;–-] ?\^?\d{1,4}){0,20}(?:†[^】]{0,40})?[\]】])/; // [1], [1, 2], [1-3] and what the service counts besides
const NOT_LINKED = "a, button, code, details, pre, .open-block, .sources, .row";
const LOCAL = "local:";

const placeOf = (message, number) => `source-${message.id}-${number}`;

// A reply that cites nothing has all sources that the model was given.
export function sourceList(message) {
  const title = message.cited === false ? "Found, but not cited" : "Sources";
  const list = element("ol", {}, ...message.sources.map((source) => line(message, source)));
  list.setAttribute("aria-label", title);
  return element("div", { className: "sources" }, element("p", { textContent: title }), list);
}

// The text of a reply and, below it, the sources that it cites.
export function withSources({ text, sources = [], cited }) {
  if (!sources.length || cited === false) return text;
  const lines = sources.map((source) => {
    const { address, name, place } = describe(source);
    return `[${source.number}] ${[name, address?.href ?? place].filter(Boolean).join(", ")}`;
  });
  return `${text.trimEnd()}\n\nSources:\n${lines.join("\n")}\n`;
}

// The name of a source, and the place where it is as far as the name does not say it.
function describe({ url, title }) {
  const address = webAddress(url);
  const path = address ? address.host : documentName(url);
  const name = title.trim() || path || "Without a title";
  if (address) return { address, name, place: path === name ? "" : path };
  const end = path.lastIndexOf("/");
  const place = name.includes(path) ? "" : name.includes(path.slice(end + 1)) ? path.slice(0, end) : path;
  return { name, place };
}

function line(message, source) {
  const { number } = source;
  const { address, name, place } = describe(source);
  const shown = address
    ? element("a", { href: address.href, target: "_blank", rel: "noopener noreferrer nofollow" }, element("bdi", { textContent: name }))
    : element("bdi", { textContent: name });
  const made = element("li", { id: placeOf(message, number), value: number, tabIndex: -1 }, shown);
  if (place) made.append(" ", element("bdi", { className: "place", textContent: place }));
  return made;
}

function webAddress(url) {
  const address = URL.canParse(url) ? new URL(url) : null;
  return ["http:", "https:"].includes(address?.protocol) ? address : null;
}

function documentName(url) {
  if (!url.startsWith(LOCAL)) return "";
  const [path] = url.slice(LOCAL.length).split("#");
  try {
    return decodeURIComponent(path);
  } catch {
    return path;
  }
}

// Makes links of the numbers in markers, like [1] or [1, 2], in what is rendered of a message.
export function linkMarkers(root, message) {
  const known = new Set(message.sources.map(({ number }) => number));
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) {
    const text = walker.currentNode;
    if (MARKER.test(text.data) && !text.parentElement.closest(NOT_LINKED)) texts.push(text);
  }
  for (const text of texts) {
    const pieces = text.data.split(MARKER); // every second one is a marker
    text.replaceWith(...pieces.flatMap((piece, index) => (index % 2 ? linked(piece, message, known) : piece)));
  }
}

function linked(marker, message, known) {
  const numbers = marker.replace(/†.*/, "").match(/\d+/g).map(Number);
  if (numbers.length === 1) return known.has(numbers[0]) ? link(message, numbers[0], `[${numbers[0]}]`) : marker;
  if (!numbers.some((number) => known.has(number))) return marker;
  const pieces = marker.split(/(\d+)/).map((piece, index) => (index % 2 && known.has(Number(piece)) ? link(message, Number(piece), piece) : piece));
  return element("span", { className: "cite" }, ...pieces);
}

// The address of the page names the conversation: a marker moves the focus and leaves the address alone.
function link(message, number, text) {
  const go = (event) => {
    event.preventDefault();
    byId(placeOf(message, number))?.focus();
  };
  return element("a", { className: "cite", href: `#${placeOf(message, number)}`, textContent: text, onclick: go });
}
