// Conversations as an archive: each as Markdown with its files, and all as JSON, which can be imported.
//
// What is imported is checked: it may come from anybody.

import { withSources } from "./chat_sources.js";
import { newConversation, newId, pathTo } from "./chat_store.js";
import { localTime } from "./page.js";
import { unzip, zip } from "./chat_zip.js";

const FORMAT = "cadenza-chat";
const JSON_NAME = "cadenza-chat.json";
const JSON_BYTES_MAX = 20_000_000;
const MESSAGES_MAX = 20_000;
const STEM_CHARS_MAX = 60; // of the name of a file
const NO_EXPORT = "This file is not an export of this chat. Choose the .zip file that Export saved, or the cadenza-chat.json in it.";
const ROLES = ["user", "assistant"];
const WRITERS = ["words", "class", "person"]; // of titles
const PARTS = ["search", "memory"]; // what the service may add to a question, unless a conversation has it in `off`

// A name that every file system takes and that leads nowhere else, and that is not in `used` yet. `used` is a Map: for each
// name, in lower case, the number with which the search for the next free one goes on.
function freeName(name, used) {
  const safe = name.replace(/[\\/:*?"<>|\p{C}]/gu, "_").replace(/[. ]+$/, "");
  const extension = safe.match(/\.\w{1,10}$/)?.[0] ?? "";
  const stem = safe.slice(0, safe.length - extension.length).slice(0, STEM_CHARS_MAX).trim() || "untitled";
  const wanted = (stem + extension).toLowerCase();
  for (let number = used.get(wanted) ?? 1; ; number += 1) {
    const free = number === 1 ? stem + extension : `${stem} (${number})${extension}`;
    if (used.has(free.toLowerCase())) continue;
    used.set(free.toLowerCase(), 2).set(wanted, number + 1);
    return free;
  }
}

const allFiles = ({ messages }) => Object.values(messages).flatMap(({ files = [] }) => files);

// Returns {name, archive} of the conversations with these ids. The files that are here are in it.
export async function exported(ids, store, files) {
  const [entries, json, folders] = [[], [], new Map()];
  let name = `cadenza-chat-${new Date().toISOString().slice(0, 10)}`;
  for (const id of ids) {
    const conversation = await store.get(id);
    if (!conversation) continue; // deleted meanwhile
    const title = freeName(conversation.title, folders);
    if (ids.length === 1) name = title;
    const folder = ids.length === 1 ? "" : `${title}/`;
    entries.push(...(await fileEntries(conversation, folder, files)));
    entries.push([`${folder}conversation.md`, new Blob([markdownOf(conversation, folder)])]);
    for (const message of Object.values(conversation.messages)) delete message.html;
    json.push(json.length ? "," : "", JSON.stringify(conversation));
  }
  entries.push([JSON_NAME, new Blob([`{"format":"${FORMAT}","version":1,"conversations":[`, ...json, "]}"])]);
  return { name: `${name}.zip`, archive: await zip(entries) };
}

// The entries of its files. Each file of a message gets a `path`; messages may share one.
async function fileEntries(conversation, folder, files) {
  const [paths, names, entries] = [new Map(), new Map(), []];
  for (const file of allFiles(conversation)) {
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
    parts.push(role === "user" ? "## You" : `## Reply${cost?.class ? ` (${cost.class})` : ""}`);
    for (const { name, path } of files) parts.push(path ? `[${name.replace(/[[\]]/g, "\\$&")}](<${path.slice(folder.length)}>)` : `${name} (not kept)`);
    parts.push(withSources(message).trim());
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

// Adds the conversations of an archive, or of its JSON alone. Returns how many, or throws an Error that says what is wrong.
export async function imported(file, store, files) {
  const isArchive = (await file.slice(0, 2).text()) === "PK";
  const entries = isArchive ? await unzip(file) : new Map([[JSON_NAME, file]]);
  const json = entries.get(JSON_NAME);
  if (!json || !(isArchive || (await isObject(json)))) throw new Error(NO_EXPORT);
  if (json.size > JSON_BYTES_MAX) throw new Error("The conversations in the file are larger than 20 MB.");
  const conversations = read(await json.text());
  for (const conversation of conversations) {
    await store.save(conversation);
    await keepFiles(conversation, entries, files);
    await store.save(conversation);
  }
  return conversations.length;
}

// Whether JSON begins like an object: of a PDF or a picture no more is read.
const isObject = async (file) => /^\ufeff?\s*\{/.test(await file.slice(0, 100).text());

// Each entry is stored once, for the first conversation that has it.
async function keepFiles(conversation, entries, files) {
  const known = new Map();
  for (const file of allFiles(conversation)) {
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

// Checks exported JSON and makes conversations of it. Only known fields are taken, and never HTML.
function read(text) {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    throw new Error("The file is damaged: it ends early, or was changed. Import it as it was exported.");
  }
  if (given?.format !== FORMAT || given.version !== 1 || !Array.isArray(given.conversations)) {
    throw new Error(NO_EXPORT);
  }
  const { conversations } = given;
  if (conversations.some((one) => typeof one?.messages !== "object" || !one.messages)) throw new Error("A conversation in the file has no messages.");
  const total = conversations.reduce((sum, one) => sum + Object.keys(one.messages).length, 0);
  if (Math.max(total, conversations.length) > MESSAGES_MAX) throw new Error("The file has too many messages: at most 20,000 can be imported at once.");
  return conversations.map(readConversation);
}

const isText = (value) => typeof value === "string";
const time = (value) => (Number.isFinite(value) && value >= 0 && value < Date.now() ? value : Date.now());

function readConversation(given) {
  const ids = new Map(Object.keys(given.messages).map((id) => [id, newId()]));
  const conversation = newConversation();
  conversation.title = isText(given.title) ? given.title.slice(0, 200) : "";
  conversation.created = time(given.created);
  conversation.changed = time(given.changed);
  if (WRITERS.includes(given.titleBy)) conversation.titleBy = given.titleBy;
  if (isDollars(given.titleCost)) conversation.titleCost = given.titleCost;
  if (given.pinned === true) conversation.pinned = true;
  conversation.off = PARTS.filter((part) => Array.isArray(given.off) && given.off.includes(part));
  for (const [id, message] of Object.entries(given.messages)) {
    if (!ROLES.includes(message?.role) || !isText(message.text)) throw new Error("A message in the file is not as expected.");
    const known = { id: ids.get(id), parent: ids.get(message.parent) ?? null, role: message.role, text: message.text, created: time(message.created) };
    if (isDollars(message.cost?.cost)) known.cost = readCost(message.cost);
    if (Array.isArray(message.files)) known.files = message.files.map(readFile);
    if (Array.isArray(message.sources)) known.sources = message.sources.map(readSource);
    if (message.cited === false) known.cited = false;
    if (message.added) known.added = readAdded(message.added);
    conversation.messages[known.id] = known;
  }
  checkEnds(conversation.messages);
  conversation.head = ids.get(given.head) ?? Object.keys(conversation.messages).at(-1) ?? null;
  return conversation;
}

const count = (value) => (Number.isSafeInteger(value) && value >= 0 ? value : 0);

// The `path` of its data in the archive is for the import alone.
function readFile(given) {
  if (!isText(given?.name) || !isText(given.type)) throw new Error("A file of a message is not as expected.");
  const { name, type, size, path } = given;
  return { id: newId(), name: name.slice(0, 200), type: type.slice(0, 100), size: count(size), isKept: false, path };
}

function readSource(given) {
  if (!isText(given?.url) || !isText(given.title)) throw new Error("A source of a reply is not as expected.");
  return { number: count(given.number), url: given.url.slice(0, 2000), title: given.title.slice(0, 500) };
}

const readAdded = (given) => Object.fromEntries(["memory", "search", "attachments", "cut"].map((part) => [part, given[part] === "failed" ? "failed" : count(given[part])]));

const isDollars = (value) => isText(value) && /^\d{1,9}\.\d{1,9}$/.test(value);

function readCost(given) {
  return {
    class: isText(given.class) ? given.class.slice(0, 40) : "",
    prompt_tokens: count(given.prompt_tokens),
    completion_tokens: count(given.completion_tokens),
    cost: given.cost,
  };
}

// Each message leads to a first one. What is known to do so is not followed again.
function checkEnds(messages) {
  const ended = new Set([null]);
  for (const id of Object.keys(messages)) {
    const path = new Set();
    for (let at = id; !ended.has(at); at = messages[at].parent) {
      if (path.has(at)) throw new Error("The messages in the file go round in a circle.");
      path.add(at);
    }
    for (const at of path) ended.add(at);
  }
}
