// Conversations in the browser's own storage (IndexedDB), and small settings beside them. Nothing here leaves the browser.
//
// A conversation has messages by id, each with its parent: an edit or another reply is a sibling, so nothing is lost.
// `head` is the last message of the branch that is shown. HTML is kept only as our server sent it for that text.

const IMPORT_BYTES_MAX = 20_000_000;
const IMPORT_MESSAGES_MAX = 20_000;
const FORMAT = "cadenza-chat";
const ROLES = ["user", "assistant"];

export const newId = () => crypto.randomUUID?.() ?? [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

export class Store {
  static async open(account) {
    const opening = indexedDB.open(`cadenza-chat-${account}`, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("conversations", { keyPath: "id" });
    return new Store(await settled(opening), `cadenza-chat-${account}:`);
  }

  constructor(database, prefix) {
    this.database = database;
    this.prefix = prefix;
  }

  #table(mode = "readonly") {
    return this.database.transaction("conversations", mode).objectStore("conversations");
  }

  get(id) {
    return settled(this.#table().get(id));
  }

  save(conversation) {
    return settled(this.#table("readwrite").put(conversation));
  }

  async remove(id) {
    await settled(this.#table("readwrite").delete(id));
    this.set(`draft-${id}`, "");
  }

  async removeAll() {
    await settled(this.#table("readwrite").clear());
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
        const text = wanted.length ? [one.title, ...Object.values(one.messages).map((message) => message.text)].join("\n").toLowerCase() : "";
        if (wanted.every((word) => text.includes(word))) found.push({ id: one.id, title: one.title, changed: one.changed });
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
  const words = text.trim().split(/\s+/).slice(0, 8).join(" ");
  return words.length > 60 ? `${words.slice(0, 59)}…` : words;
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
const time = (value) => (Number.isFinite(value) ? value : Date.now());

function readConversation(given) {
  if (typeof given?.messages !== "object" || !given.messages) throw new Error("A conversation in the file has no messages.");
  const ids = new Map(Object.keys(given.messages).map((id) => [id, newId()]));
  const conversation = newConversation();
  conversation.title = isText(given.title) ? given.title.slice(0, 200) : "";
  conversation.created = time(given.created);
  conversation.changed = time(given.changed);
  for (const [id, message] of Object.entries(given.messages)) {
    if (!ROLES.includes(message?.role) || !isText(message.text)) throw new Error("A message in the file is not as expected.");
    const known = { id: ids.get(id), parent: ids.get(message.parent) ?? null, role: message.role, text: message.text, created: time(message.created) };
    if (isText(message.cost?.cost) && /^\d+\.\d+$/.test(message.cost.cost)) known.cost = readCost(message.cost);
    conversation.messages[known.id] = known;
  }
  for (const id of Object.keys(conversation.messages)) checkEnd(conversation, id);
  conversation.head = ids.get(given.head) ?? Object.keys(conversation.messages).at(-1) ?? null;
  return conversation;
}

function readCost(given) {
  const count = (value) => (Number.isSafeInteger(value) && value >= 0 ? value : 0);
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
