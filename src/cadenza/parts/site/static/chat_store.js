// Conversations in the browser's own storage (IndexedDB), and small settings beside them. Nothing here leaves the browser.
//
// A conversation has messages by id, each with its parent: an edit or another reply is a sibling, so nothing is lost.
// `head` is the last message of the branch that is shown. HTML is kept only as our server sent it for that text.
// The marks of a conversation may change while it is open, in the list or in another tab: only `mark` writes them.
// `titleBy` is "words" while the title is the first words, "class" once the class was asked for one, and "person".

const NO_ROOM = "This browser has no room to keep the conversation. Delete conversations that you do not need.";
const MARKS = ["title", "titleBy", "titleCost", "pinned"];

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
    const kept = await this.#change(conversation.id, (stored) => (stored || isNew) && { ...conversation, ...marksOf(stored) });
    if (!kept) throw new Error("This conversation was deleted in another tab. It is not kept.");
    this.#stored.add(conversation);
  }

  // Changes marks. `fieldsOf` gets the conversation as it is stored; without fields nothing changes, and nothing is returned.
  mark(id, fieldsOf) {
    return this.#change(id, (stored) => {
      const fields = stored && fieldsOf(stored);
      return fields && { ...stored, ...fields };
    });
  }

  // Replaces what is stored under an id, and returns the replacement.
  async #change(id, replacementOf) {
    let replacement;
    await change(this.database, "conversations", (table) => {
      const finding = table.get(id);
      finding.onsuccess = () => {
        replacement = replacementOf(finding.result);
        if (replacement) table.put(replacement);
      };
    });
    return replacement;
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
  for (let message = conversation.messages[id]; message; message = conversation.messages[message.parent]) path.push(message);
  return path.reverse();
}

// The messages by their parent, oldest first.
export function childrenOf(conversation) {
  const children = new Map();
  for (const message of Object.values(conversation.messages)) {
    if (!children.has(message.parent)) children.set(message.parent, []);
    children.get(message.parent).push(message);
  }
  return children;
}

// The newest end of the branch that goes through this message.
export function endOf(conversation, id) {
  const children = childrenOf(conversation);
  while (children.has(id)) id = children.get(id).at(-1).id;
  return id;
}

export function titleOf(text) {
  const words = text.trim().split(/\s+/);
  const start = words.slice(0, 8).join(" ").slice(0, 59);
  return start.length < words.join(" ").length ? `${start}…` : start;
}
