// Conversations as an archive: each as Markdown with its files, and all as JSON, which can be imported.
//
// The archive is a ZIP without compression. It is a list of pieces: the data of a file is read in slices for its checksum,
// and is otherwise left where the browser has it. What is imported is checked: it may come from anybody.

import { withSources } from "./chat_sources.js";
import { FORMAT, pathTo, read } from "./chat_store.js";
import { localTime } from "./page.js";

const JSON_NAME = "cadenza-chat.json";
const JSON_BYTES_MAX = 20_000_000;
const DIRECTORY_BYTES_MAX = 20_000_000;
const ARCHIVE_BYTES_MAX = 2 ** 32 - 1; // what a ZIP without extensions can have, and so many entries:
const ENTRIES_MAX = 2 ** 16 - 1;
const SLICE_BYTES = 2 ** 20;
const STEM_CHARS_MAX = 60;
const [LOCAL, CENTRAL, END] = [0x04034b50, 0x02014b50, 0x06054b50]; // the signatures of its records
const [LOCAL_BYTES, CENTRAL_BYTES, END_BYTES] = [30, 46, 22];
const VERSION = 20;
const HAS_UTF8_NAME = 0x0800;
const STORED = 0; // not compressed
const DAMAGED = "The archive is damaged, or another program has written it. Import it as it was exported.";

const CRC_OF_BYTE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit += 1) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte;
});

async function checksumOf(data) {
  let crc = -1;
  for (let start = 0; start < data.size; start += SLICE_BYTES) {
    const slice = new Uint8Array(await data.slice(start, start + SLICE_BYTES).arrayBuffer());
    for (const byte of slice) crc = (crc >>> 8) ^ CRC_OF_BYTE[(crc ^ byte) & 255];
  }
  return ~crc >>> 0;
}

const u16 = (...numbers) => Uint16Array.from(numbers); // every browser runs on a machine whose bytes are in the order of a ZIP
const u32 = (...numbers) => Uint32Array.from(numbers);

// The archive of [path, Blob] pairs.
async function zip(entries) {
  const now = new Date();
  const time = (now.getHours() << 11) | (now.getMinutes() << 5) | (now.getSeconds() >> 1);
  const date = ((now.getFullYear() - 1980) << 9) | ((now.getMonth() + 1) << 5) | now.getDate();
  const [files, directory] = [[], []];
  let size = 0;
  for (const [path, data] of entries) {
    const name = new TextEncoder().encode(path);
    const fields = [u16(VERSION, HAS_UTF8_NAME, STORED, time, date), u32(await checksumOf(data), data.size, data.size), u16(name.length, 0)];
    files.push(u32(LOCAL), ...fields, name, data);
    directory.push(u32(CENTRAL), u16(VERSION), ...fields, u16(0, 0, 0), u32(0, size), name);
    size += LOCAL_BYTES + name.length + data.size;
  }
  const directorySize = new Blob(directory).size;
  if (size + directorySize > ARCHIVE_BYTES_MAX || entries.length > ENTRIES_MAX) {
    throw new Error("The files are too large for one archive, which can have 4 GB. Export the conversations one by one.");
  }
  const end = [u32(END), u16(0, 0, entries.length, entries.length), u32(directorySize, size), u16(0)];
  return new Blob([...files, ...directory, ...end], { type: "application/zip" });
}

// The data by path, of an archive that `zip` made.
async function unzip(archive) {
  const viewOf = async (start, end) => new DataView(await archive.slice(start, end).arrayBuffer());
  const end = await viewOf(-END_BYTES);
  const [count, directorySize, directoryStart] = [end.getUint16(10, true), end.getUint32(12, true), end.getUint32(16, true)];
  if (end.getUint32(0, true) !== END || directorySize > DIRECTORY_BYTES_MAX) throw new Error(DAMAGED);
  const directory = await viewOf(directoryStart, directoryStart + directorySize);
  const entries = new Map();
  let [at, total] = [0, 0];
  for (let entry = 0; entry < count; entry += 1) {
    const [crc, size, nameSize] = [directory.getUint32(at + 16, true), directory.getUint32(at + 24, true), directory.getUint16(at + 28, true)];
    const name = new TextDecoder().decode(new Uint8Array(directory.buffer, at + CENTRAL_BYTES, nameSize));
    const start = directory.getUint32(at + 42, true) + LOCAL_BYTES + nameSize;
    const data = archive.slice(start, start + size);
    total += size; // entries that overlap would be more than there is
    if (total > archive.size || (await checksumOf(data)) !== crc) throw new Error(DAMAGED);
    entries.set(name, data);
    at += CENTRAL_BYTES + nameSize;
  }
  return entries;
}

// A name that every file system takes and that leads nowhere else, and that is not in `used` yet.
function freeName(name, used) {
  const safe = name.replace(/[\\/:*?"<>|\p{C}]/gu, "_").replace(/[. ]+$/, "");
  const extension = safe.match(/\.\w{1,10}$/)?.[0] ?? "";
  const stem = safe.slice(0, safe.length - extension.length).slice(0, STEM_CHARS_MAX).trim() || "untitled";
  for (let number = 1; ; number += 1) {
    const free = number === 1 ? stem + extension : `${stem} (${number})${extension}`;
    if (used.has(free.toLowerCase())) continue;
    used.add(free.toLowerCase());
    return free;
  }
}

// Returns {name, archive} of the conversations with these ids. The files that are here are in it.
export async function exported(ids, store, files) {
  const [entries, json, folders] = [[], [], new Set()];
  let name = `cadenza-chat-${new Date().toISOString().slice(0, 10)}`;
  for (const id of ids) {
    const conversation = await store.get(id);
    if (!conversation) continue; // deleted meanwhile
    const title = freeName(conversation.title, folders);
    if (ids.length === 1) name = title;
    const folder = ids.length === 1 ? "" : `${title}/`;
    entries.push(...(await filesOf(conversation, folder, files)));
    entries.push([`${folder}conversation.md`, new Blob([markdownOf(conversation, folder)])]);
    for (const message of Object.values(conversation.messages)) delete message.html;
    json.push(json.length ? "," : "", JSON.stringify(conversation));
  }
  entries.push([JSON_NAME, new Blob([`{"format":"${FORMAT}","version":1,"conversations":[`, ...json, "]}"])]);
  return { name: `${name}.zip`, archive: await zip(entries) };
}

// The entries of its files. Each file of a message gets the `path` of its own: messages may share one.
async function filesOf(conversation, folder, files) {
  const [paths, names, entries] = [new Map(), new Set(), []];
  for (const file of Object.values(conversation.messages).flatMap((message) => message.files ?? [])) {
    if (!paths.has(file.id)) {
      const data = await files.find(file.id);
      paths.set(file.id, data && `${folder}files/${freeName(file.name, names)}`);
      if (data) entries.push([paths.get(file.id), data]);
    }
    file.path = paths.get(file.id);
  }
  return entries;
}

// The branch that is shown.
function markdownOf(conversation, folder) {
  const parts = [`# ${conversation.title}`, localTime(new Date(conversation.changed))];
  for (const message of pathTo(conversation, conversation.head)) {
    const { role, cost, files = [] } = message;
    parts.push(role === "user" ? "## You" : `## Reply${cost ? ` (${cost.class})` : ""}`);
    for (const { name, path } of files) parts.push(path ? `[${name.replace(/[[\]]/g, "\\$&")}](<${path.slice(folder.length)}>)` : `${name} (not kept)`);
    parts.push(withSources(message).trim());
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

// Adds the conversations of an archive, or of its JSON alone. Returns how many, or throws an Error that says what is wrong.
export async function imported(file, store, files) {
  const isArchive = (await file.slice(0, 2).text()) === "PK";
  const entries = isArchive ? await unzip(file).catch(() => Promise.reject(new Error(DAMAGED))) : new Map([[JSON_NAME, file]]);
  const json = entries.get(JSON_NAME);
  if (!json) throw new Error("The archive is not an export of this chat.");
  if (json.size > JSON_BYTES_MAX) throw new Error("The conversations in the file are larger than 20 MB.");
  const conversations = read(await json.text());
  for (const conversation of conversations) {
    await store.save(conversation);
    await keepFiles(conversation, entries, files);
    await store.save(conversation);
  }
  return conversations.length;
}

// Each entry is stored once, for the first conversation that has it.
async function keepFiles(conversation, entries, files) {
  const known = new Map();
  for (const file of Object.values(conversation.messages).flatMap((message) => message.files ?? [])) {
    const { path } = file;
    delete file.path;
    if (!known.has(path) && entries.has(path)) {
      const data = entries.get(path);
      entries.delete(path);
      await files.put(conversation.id, file, data);
      known.set(path, { id: file.id, size: data.size, isKept: file.isKept });
    }
    Object.assign(file, known.get(path));
  }
}
