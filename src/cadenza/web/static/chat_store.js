// Conversations in the browser's own storage (IndexedDB), and small settings beside them. Nothing here leaves the browser.
//
// A conversation has messages by id, each with its parent: an edit or another reply is a sibling, so nothing is lost.
// `head` is the last message of the branch that is shown. HTML is kept only as our server sent it for that text.
// The marks of a conversation are what the list changes, in this tab or in another one: only `mark` writes them.

const IMPORT_BYTES_MAX = 20_000_000;
const IMPORT_MESSAGES_MAX = 20_000;
const NO_ROOM = "This browser has no room to keep the conversation. Delete conversations that you do not need.";
const FORMAT = "cadenza-chat";
const ROLES = ["user", "assistant"];
const PARTS = ["search", "memory"]; // what the service may add to a question, unless a conversation has it in `off`
const MARKS = ["title", "pinned"];

export const newId = () => crypto.randomUUID?.() ?? [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

export const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

// Changes a table. A browser that has no room says so only when the transaction ends.
export function change(database, name, act) {
  const changing = database.transaction(name, "readwrite");
  return new Promise((resolve, reject) => {
    changing.oncomplete = resolve;
    changing.onabort = () => reject(changing.error?.name === "QuotaExceededError" ? new Error(NO_ROOM) : changing.error);
    act(changing.objectStore(name));
  });
}

export class Store {
  #stored = new WeakSet(); // conversations that were read or saved

  static async open(account) {
    const opening = indexedDB.open(`cadenza-chat-${account}`, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("conversations", { keyPath: "id" });
    return new Store(await settled(opening), `cadenza-chat-${account}:`);
  }

  constructor(database, prefix) {
    this.database = database;
    this.prefix = prefix;
  }

  #table() {
    return this.database.transaction("conversations").objectStore("conversations");
  }

  async get(id) {
    const conversation = await settled(this.#table().get(id));
    if (conversation) this.#stored.add(conversation);
    return conversation;
  }

  // Saves all but the marks. A conversation that was deleted meanwhile stays deleted.
  async save(conversation) {
    const isNew = !this.#stored.has(conversation);
    const wasThere = await this.#change(conversation.id, (stored) => (stored || isNew) && { ...conversation, ...marksOf(stored) });
    if (!wasThere && !isNew) throw new Error("This conversation was deleted in another tab. It is not kept.");
    this.#stored.add(conversation);
  }

  mark(id, fields) {
    return this.#change(id, (stored) => stored && { ...stored, ...fields });
  }

  // Replaces what is stored under an id. Returns what was there.
  async #change(id, replacement) {
    let finding;
    await change(this.database, "conversations", (table) => {
      finding = table.get(id);
      finding.onsuccess = () => {
        const next = replacement(finding.result);
        if (next) table.put(next);
      };
    });
    return finding.result;
  }

  async remove(id) {
    await change(this.database, "conversations", (table) => table.delete(id));
    this.set(`draft-${id}`, "");
  }

  async removeAll() {
    await change(this.database, "conversations", (table) => table.clear());
    const own = Object.keys(localStorage).filter((key) => key.startsWith(this.prefix));
    for (const key of own) localStorage.removeItem(key);
  }

  // What the list shows, newest first; with words, only conversations that contain all of them.
  async list(words = "") {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    await new Promise((resolve, reject) => {
      const reading = this.#table().openCursor();
      reading.onerror = () => reject(reading.error);
      reading.onsuccess = () => {
        const cursor = reading.result;
        if (!cursor) return resolve();
        const one = cursor.value;
        const text = wanted.length ? textOf(one).toLowerCase() : "";
        if (wanted.every((word) => text.includes(word))) found.push({ id: one.id, changed: one.changed, ...marksOf(one) });
        cursor.continue();
      };
    });
    return found.sort((one, other) => other.changed - one.changed);
  }

  // Settings and drafts: written at once, so that a reload loses nothing.
  setting(name) {
    return localStorage.getItem(this.prefix + name) ?? "";
  }

  set(name, value) {
    if (value) localStorage.setItem(this.prefix + name, value);
    else localStorage.removeItem(this.prefix + name);
  }

  async export() {
    const conversations = await settled(this.#table().getAll());
    for (const conversation of conversations) for (const message of Object.values(conversation.messages)) delete message.html;
    return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
  }

  // Adds the conversations of an exported file, or throws an Error that says what is wrong with it.
  async import(file) {
    if (file.size > IMPORT_BYTES_MAX) throw new Error("The file is larger than 20 MB.");
    const conversations = read(await file.text());
    for (const conversation of conversations) await this.save(conversation);
    return conversations.length;
  }
}

export const marksOf = (conversation = {}) => Object.fromEntries(MARKS.filter((name) => name in conversation).map((name) => [name, conversation[name]]));

// What a search looks at.
function textOf({ title, messages }) {
  const said = Object.values(messages).flatMap(({ text, files = [] }) => [text, ...files.map(({ name }) => name)]);
  return [title, ...said].join("\n");
}

export function newConversation() {
  return { id: newId(), title: "", created: Date.now(), changed: Date.now(), head: null, messages: {} };
}

export function addMessage(conversation, fields) {
  const message = { id: newId(), parent: null, text: "", created: Date.now(), ...fields };
  conversation.messages[message.id] = message;
  conversation.head = message.id;
  return message;
}

// The messages from the first to this one.
export function pathTo(conversation, id) {
  const path = [];
  for (let message = conversation.messages[id]; message; message = conversation.messages[message.parent]) path.unshift(message);
  return path;
}

export function siblings(conversation, message) {
  return Object.values(conversation.messages).filter((one) => one.parent === message.parent && one.role === message.role);
}

// The newest end of the branch that goes through this message.
export function endOf(conversation, id) {
  for (;;) {
    const next = Object.values(conversation.messages).findLast((message) => message.parent === id);
    if (!next) return id;
    id = next.id;
  }
}

export function titleOf(text) {
  const words = text.trim().split(/\s+/);
  const start = words.slice(0, 8).join(" ").slice(0, 59);
  return start.length < words.join(" ").length ? `${start}…` : start;
}

// Checks an exported file and makes conversations of it. Only known fields are taken, and never HTML.
function read(text) {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (given?.format !== FORMAT || given.version !== 1 || !Array.isArray(given.conversations)) {
    throw new Error("The file is not an export of this chat.");
  }
  const total = given.conversations.reduce((sum, one) => sum + Object.keys(one?.messages ?? {}).length, 0);
  if (total > IMPORT_MESSAGES_MAX) throw new Error("The file has too many messages.");
  return given.conversations.map(readConversation);
}

const isText = (value) => typeof value === "string";
const time = (value) => (value >= 0 && value < Date.now() ? value : Date.now());

function readConversation(given) {
  if (typeof given?.messages !== "object" || !given.messages) throw new Error("A conversation in the file has no messages.");
  const ids = new Map(Object.keys(given.messages).map((id) => [id, newId()]));
  const conversation = newConversation();
  conversation.title = isText(given.title) ? given.title.slice(0, 200) : "";
  conversation.created = time(given.created);
  conversation.changed = time(given.changed);
  if (given.pinned === true) conversation.pinned = true;
  conversation.off = PARTS.filter((part) => Array.isArray(given.off) && given.off.includes(part));
  for (const [id, message] of Object.entries(given.messages)) {
    if (!ROLES.includes(message?.role) || !isText(message.text)) throw new Error("A message in the file is not as expected.");
    const known = { id: ids.get(id), parent: ids.get(message.parent) ?? null, role: message.role, text: message.text, created: time(message.created) };
    if (isText(message.cost?.cost) && /^\d+\.\d+$/.test(message.cost.cost)) known.cost = readCost(message.cost);
    if (Array.isArray(message.files)) known.files = message.files.map(readFile);
    if (Array.isArray(message.sources)) known.sources = message.sources.map(readSource);
    if (message.cited === false) known.cited = false;
    if (message.added) known.added = readAdded(message.added);
    conversation.messages[known.id] = known;
  }
  for (const id of Object.keys(conversation.messages)) checkEnd(conversation, id);
  conversation.head = ids.get(given.head) ?? Object.keys(conversation.messages).at(-1) ?? null;
  return conversation;
}

const count = (value) => (Number.isSafeInteger(value) && value >= 0 ? value : 0);

// An export has no data of files.
function readFile(given) {
  if (!isText(given?.name) || !isText(given.type)) throw new Error("A file of a message is not as expected.");
  return { id: newId(), name: given.name.slice(0, 200), type: given.type.slice(0, 100), size: count(given.size), isKept: false };
}

function readSource(given) {
  if (!isText(given?.url) || !isText(given.title)) throw new Error("A source of a reply is not as expected.");
  return { number: count(given.number), url: given.url.slice(0, 2000), title: given.title.slice(0, 500) };
}

const readAdded = (given) => Object.fromEntries(["memory", "search", "attachments", "cut"].map((part) => [part, given[part] === "failed" ? "failed" : count(given[part])]));

function readCost(given) {
  return {
    class: isText(given.class) ? given.class.slice(0, 40) : "",
    prompt_tokens: count(given.prompt_tokens),
    completion_tokens: count(given.completion_tokens),
    cost: given.cost,
  };
}

function checkEnd(conversation, id) {
  const seen = new Set();
  for (let at = id; at; at = conversation.messages[at].parent) {
    if (seen.has(at)) throw new Error("The messages in the file go round in a circle.");
    seen.add(at);
  }
}
