// The files of conversations: what may be attached, where their data is, and how they are sent.
//
// A message has `files`, each {id, name, type, size}. The data is in a database of its own, so a conversation that is saved
// does not write its files again. Where the browser refuses to store it, the file has `isKept: false`, and its data is gone
// when the page is closed. Nothing here leaves the browser, except in a request.

import { change, newId, settled, Store } from "./chat_store.js";

export const FILES_MAX = 20; // of a request
export const BYTES_MAX = 24_000_000; // of a request: as base64 they fit into its 32 MiB
const SLICE_BYTES = 3 * 2 ** 18; // a multiple of 3: base64 has no padding but at the end
const TYPE = /^[\w.+-]+\/[\w.+-]+$/;
export const IMAGES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

// Deletes all that the chat has stored for an account, before a sign-out. The choice to do so stays.
export async function forget(account) {
  const [store, files] = await Promise.all([Store.open(account), Files.open(account)]);
  await Promise.all([store.removeAll(), files.removeAll()]);
  store.set("forgets", "on");
}

export class Files {
  #loaded = new Map(); // data that is not stored: id -> Blob

  static async open(account) {
    const opening = indexedDB.open(`cadenza-chat-files-${account}`, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("files", { keyPath: "id" }).createIndex("conversation", "conversation");
    return new Files(await settled(opening));
  }

  constructor(database) {
    this.database = database;
  }

  // Reads a file that was chosen. Throws where it cannot be read, as with a folder.
  async load(chosen) {
    const type = chosen.type.split(";")[0];
    const file = { id: newId(), name: chosen.name, type, size: chosen.size };
    this.#loaded.set(file.id, new Blob([await chosen.arrayBuffer()], { type }));
    return file;
  }

  // Stores the data of files that are sent for the first time. Chromium takes a refused write for used room, and then
  // refuses everything, unless it was asked before what is in use.
  async keep(conversation, files) {
    await navigator.storage?.estimate();
    for (const file of files) {
      const data = this.#loaded.get(file.id);
      if (!data || file.isKept === false) continue;
      try {
        await this.#change((table) => table.put({ id: file.id, conversation, data }));
        this.#loaded.delete(file.id);
      } catch {
        file.isKept = false;
      }
    }
  }

  // Stores the data of a file that is imported.
  async put(conversation, file, data) {
    this.#loaded.set(file.id, data.slice(0, data.size, file.type));
    file.isKept = true;
    await this.keep(conversation, [file]);
  }

  // The data of a file, or undefined.
  async find(id) {
    if (this.#loaded.has(id)) return this.#loaded.get(id);
    const found = await settled(this.database.transaction("files").objectStore("files").get(id)).catch(() => undefined);
    return found?.data;
  }

  // The files whose data is needed and not here. Those that the person agreed to leave out are not needed.
  async missing(files) {
    const missing = [];
    for (const file of files) {
      if (file.isLeftOut || (await this.find(file.id))) continue;
      file.isKept = false;
      missing.push(file);
    }
    return missing;
  }

  async removeOf(conversation) {
    await this.#change((table) => {
      const finding = table.index("conversation").getAllKeys(conversation);
      finding.onsuccess = () => finding.result.forEach((id) => table.delete(id));
    });
  }

  async removeAll() {
    this.#loaded.clear();
    await this.#change((table) => table.clear());
  }

  #change(act) {
    return change(this.database, "files", act);
  }

  // The body of a request for a reply to the last message of a path. Files are put in as pieces: a browser stands still
  // over a string of many MB.
  async bodyOf(model, system, path) {
    const pieces = new Map(); // what stands for a file in the JSON -> the pieces of its data URL
    const messages = [...system];
    const said = path.filter(({ role, text }) => role === "user" || text); // a reply can end before its first word
    for (const message of said) messages.push(await this.#toSend(message, pieces));
    const json = JSON.stringify({ model, messages, stream: true });
    return pieces.size ? fill(json, pieces) : json;
  }

  // A message as the API takes it: its files, then its text.
  async #toSend({ role, text, files = [] }, pieces) {
    const parts = [];
    for (const file of files) {
      const data = await this.find(file.id);
      if (!data) continue;
      const place = newId();
      pieces.set(place, await encode(data));
      parts.push(IMAGES.includes(file.type) ? { type: "image_url", image_url: { url: place } } : { type: "file", file: { filename: file.name, file_data: place } });
    }
    if (!parts.length) return { role, content: text };
    return { role, content: text ? [...parts, { type: "text", text }] : parts };
  }
}

// The pieces of a data URL.
async function encode(data) {
  const pieces = [`data:${TYPE.test(data.type) ? data.type : "application/octet-stream"};base64,`];
  for (let start = 0; start < data.size; start += SLICE_BYTES) {
    const url = await dataUrl(data.slice(start, start + SLICE_BYTES));
    pieces.push(new Blob([url.slice(url.indexOf(",") + 1)]));
  }
  return pieces;
}

function dataUrl(data) {
  const reader = new FileReader();
  return new Promise((resolve, reject) => {
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(data);
  });
}

function fill(json, pieces) {
  const filled = [];
  for (const [place, data] of pieces) {
    const start = json.indexOf(place);
    filled.push(json.slice(0, start), ...data);
    json = json.slice(start + place.length);
  }
  return new Blob([...filled, json]);
}

export const filesOf = (messages) => messages.flatMap(({ files = [] }) => files.filter((file) => !file.isLeftOut));
