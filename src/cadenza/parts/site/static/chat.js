// The chat page: conversations of this browser, replies of the service.

import { Attachments, fillChips } from "./chat_attach.js";
import { noteOf, totalOf } from "./chat_cost.js";
import { byId, element } from "./chat_elements.js";
import { Files, filesOf } from "./chat_files.js";
import { ConversationList } from "./chat_list.js";
import { withSources } from "./chat_sources.js";
import { Store, addMessage, childrenOf, endOf, marksOf, newConversation, pathTo, titleOf } from "./chat_store.js";
import { ask, findCost, render } from "./chat_stream.js";
import { writeTitle } from "./chat_title.js";
import { MessageView, Thread, copyText, plainText, question, showCredit } from "./chat_view.js";

const SAVE_EVERY_MS = 1000;
const REFUSED_STATUSES = [400, 413]; // the request itself is at fault
const EARLY_ENDS = ["stopped", "broken", "left"];
const SPOKEN_CHARS_MAX = 2000; // of a reply, to a screen reader
const TITLE_CHARS_MAX = 200;

const prompt = byId("prompt");
const picker = byId("class");
const drawer = byId("drawer");
const switches = byId("composer").querySelectorAll("[name=grounding]"); // of what the service may add
const thread = new Thread(byId("thread"), byId("empty"));
const { account } = byId("chat").dataset;
const [store, files] = await Promise.all([Store.open(account), Files.open(account)]).catch((error) => {
  thread.showError(new Error("This browser does not let the page keep conversations. Allow it to store data, then reload."));
  throw error;
});

let conversation = newConversation();
let editing = null; // the message that the composer holds
const runs = new Map(); // the reply that is arriving, by the id of its conversation, which need not be shown
const attachments = new Attachments(files, () => filesOf(pathTo(conversation, editing ? editing.parent : conversation.head)));
const draftFiles = new Map(); // of messages that are not sent yet, while the page is open

// A conversation that the browser refuses to keep goes on, and the person is told.
const save = (changed) => store.save(changed).catch((error) => changed === conversation && thread.showError(error));

const isRunning = () => runs.has(conversation.id);

// The conversation with this id, if it is shown or its reply is arriving.
const held = (id) => runs.get(id)?.asked ?? (id === conversation.id ? conversation : undefined);

// The thread

const views = new Map();

function show() {
  for (const view of views.values()) view.finish();
  thread.clear();
  views.clear();
  const path = pathTo(conversation, conversation.head);
  thread.empty.hidden = path.length > 0;
  const children = childrenOf(conversation);
  for (const message of path) addView(message, children);
  showTitle();
  for (const one of switches) one.checked = !conversation.off?.includes(one.value);
  showTotal();
  thread.toEnd();
  void renderMissing(path);
}

function showTitle() {
  byId("title").textContent = conversation.title || "New conversation";
}

function showTotal() {
  byId("total").textContent = totalOf(conversation);
}

function addView(message, children) {
  const view = new MessageView(message);
  if (message.files?.length) fillChips(view.files, message.files, files);
  views.set(message.id, view);
  thread.add(view.element);
  if (runs.get(conversation.id)?.message === message) view.begin(filesOf(pathTo(conversation, message.parent)).length > 0);
  showFoot(view, children);
}

function showFoot(view, children = childrenOf(conversation)) {
  const { message } = view;
  const all = (children.get(message.parent) ?? []).filter(({ role }) => role === message.role);
  const place = all.indexOf(message);
  const hasReply = children.has(message.id);
  const go = (step) => !isRunning() && switchTo(all[place + step]);
  const actions =
    message.role === "user"
      ? [["Edit", () => edit(message)], ...(canSendAgain(message, hasReply) ? [["Send again", () => reply(message.id), "quiet again"]] : [])]
      : [
          ["Copy", (event) => copyText(event.target, withSources(message), view.element)],
          ["Regenerate", () => reply(message.parent)],
        ];
  view.showFoot(noteOf(message), { count: all.length, place: place + 1, go }, actions);
}

// What the chosen class costs and takes.
function showTerms() {
  byId("class-terms").textContent = picker.selectedOptions[0].dataset.terms;
}

// A message that a class refused as it is would be refused again: it must be edited, or sent to another class.
function canSendAgain(message, hasReply) {
  return !hasReply && message.refusedBy !== picker.value;
}

function switchTo(message) {
  if (!message) return;
  conversation.head = endOf(conversation, message.id);
  void save(conversation);
  show();
}

// Imported and stopped replies have no HTML yet: it is rendered by the service, and kept.
async function renderMissing(path) {
  const missing = path.filter((message) => message.role === "assistant" && message.text && message.htmlUnits !== message.text.length);
  if (!missing.length || isRunning()) return;
  const shown = conversation;
  const html = await render(missing.map((message) => message.text)).catch(() => []);
  missing.forEach((message, index) => {
    if (!html[index]) return;
    Object.assign(message, { html: html[index], htmlUnits: message.text.length });
    if (shown === conversation) views.get(message.id)?.restore();
  });
  if (html.length) await save(shown);
}

// Replies

async function send(text) {
  await attachments.added;
  text = text.trim();
  const attached = attachments.files;
  if ((!text && !attached.length) || isRunning()) return;
  const parent = editing ? editing.parent : conversation.head;
  const fields = attached.length ? { files: attached.map((file) => ({ ...file })) } : {};
  if (!editing) forgetDraft();
  const message = addMessage(conversation, { role: "user", text, parent, ...fields });
  if (!conversation.title) Object.assign(conversation, { title: titleOf(text || attached[0].name), titleBy: "words" });
  if (editing) stopEditing();
  else prompt.value = "";
  show();
  await reply(message.id);
}

// A reply arrives to its end, whichever conversation is shown meanwhile.
async function reply(parent) {
  if (isRunning()) return;
  const asked = conversation;
  const run = { asked, aborting: new AbortController() };
  runs.set(asked.id, run);
  if (!(await prepareFiles(asked, pathTo(asked, parent))) || run.aborting.signal.aborted) {
    runs.delete(asked.id);
    await save(asked);
    return showList();
  }
  const message = addMessage(asked, { role: "assistant", parent, state: "running", html: "", htmlUnits: 0 });
  run.message = message;
  if (asked === conversation) {
    show();
    showRunning();
    location.hash = asked.id;
  }
  let failure = null;
  try {
    await receive(asked, message, run.aborting.signal);
    message.state = message.state === "length" ? "length" : "done";
  } catch (error) {
    message.state = error.name === "AbortError" ? "stopped" : "broken";
    if (error.name !== "AbortError") failure = error;
    if (REFUSED_STATUSES.includes(failure?.status)) asked.messages[parent].refusedBy = picker.value;
  }
  await end(asked, message);
  if (["done", "length"].includes(message.state)) void askTitle(asked.id, asked.messages[parent], message);
  if (asked !== conversation) return;
  const canRetry = failure && !failure.isFinal && !asked.messages[message.id];
  if (failure) thread.showError(failure, canRetry ? [["Try again", () => reply(parent)]] : []);
  else byId("status").textContent = message.state === "stopped" ? "Stopped." : plainText(message).slice(0, SPOKEN_CHARS_MAX);
}

// Stores the files of the last message. Asks about files that are to be sent again and are not here any more.
async function prepareFiles(asked, path) {
  const all = filesOf(path);
  if (!all.length) return true;
  await files.keep(asked.id, path.at(-1).files ?? []);
  const missing = await files.missing(all);
  if (!missing.length) return true;
  show();
  const names = missing.map(({ name }) => name).join(", ");
  const text = `This browser did not keep ${names}. To send a file again, edit its message and attach it.`;
  if (!(await question({ title: "Send without the files?", text, yes: "Send without" }))) return false;
  for (const file of missing) file.isLeftOut = true;
  return true;
}

async function receive(asked, message, signal) {
  let saved = Date.now();
  await save(asked);
  await showList();
  const instructions = store.setting("instructions").trim();
  const system = instructions ? [{ role: "system", content: instructions }] : [];
  const body = await files.bodyOf(picker.value, system, pathTo(asked, message.parent));
  for await (const event of ask(body, message.id, asked.off ?? [], signal)) {
    thread.keepingEnd(() => take(event, message, views.get(message.id)));
    if (Date.now() - saved > SAVE_EVERY_MS) {
      saved = Date.now();
      void save(asked);
    }
  }
}

// The view is there while the message is shown.
function take(event, message, view) {
  switch (event.type) {
    case "start":
      if (event.read) message.read = event.read;
      view?.showRead();
      break;
    case "text":
    case "refusal":
      message.text += event.text;
      view?.show();
      break;
    case "reasoning":
      message.reasoning = (message.reasoning ?? "") + event.text;
      view?.showReasoning();
      break;
    case "block":
      message.html += event.html;
      message.htmlUnits += event.units;
      view?.addBlock(event.html);
      break;
    case "added":
      message.added = event.counts;
      break;
    case "sources":
      Object.assign(message, { sources: event.sources, cited: event.cited });
      view?.showSources();
      break;
    case "finish":
      if (event.reason === "length") message.state = "length";
      break;
    case "usage":
      message.cost = { ...event, type: undefined };
  }
}

// After the last event. A reply that the service refused is taken back; one that ended early is rendered, and its cost asked for.
async function end(asked, message) {
  const isRefused = message.state === "broken" && !message.added;
  if (isRefused) {
    delete asked.messages[message.id];
    asked.head = message.parent;
  }
  asked.changed = Date.now();
  await save(asked);
  store.set(seenName(asked), "");
  runs.delete(asked.id);
  await showList();
  if (!isRefused && !message.cost) void askCost(asked.id, message.id);
  else void showCredit();
  if (asked !== conversation) return;
  showRunning();
  if (isRefused) return show();
  const view = views.get(message.id); // none, if the reader went to another branch meanwhile
  view?.finish();
  if (view) showFoot(view);
  showTotal();
  void renderMissing([message]);
}

// What arrived since the reply was saved, written at once when the page may be closed.
const seenName = ({ id }) => `seen-${id}`;

function keepSeen() {
  for (const { asked, message } of runs.values()) {
    if (message) store.set(seenName(asked), JSON.stringify({ id: message.id, text: message.text, reasoning: message.reasoning }));
  }
}

// A reply that was arriving when its page was closed has ended.
function endLeft() {
  const left = Object.values(conversation.messages).filter((message) => message.state === "running");
  if (!left.length) return;
  const seen = JSON.parse(store.setting(seenName(conversation)) || "{}");
  for (const message of left) Object.assign(message, { state: "left" }, seen.id === message.id && seen);
}

// The class is asked for a title once, and never again if it fails. What a person wrote meanwhile stays.
// The cost of the title is null until it is known.
async function askTitle(id, question, reply) {
  if (store.setting("titles") === "off" || !reply.cost) return;
  if (!(await store.mark(id, ({ titleBy }) => titleBy === "words" && { titleBy: "class", titleCost: null }))) return;
  const written = await writeTitle(titleRequest(id), question, reply).catch(() => null);
  if (!written) return;
  await mark(id, ({ title, titleBy }) => ({ ...written, title: titleBy === "class" && written.title ? written.title : title }));
  void showCredit();
}

const titleRequest = (id) => `title-${id}`;

async function askTitleCost(id) {
  const found = await findCost(titleRequest(id));
  if (!found) return;
  await mark(id, () => ({ titleCost: found.cost ?? "0" }));
  void showCredit();
}

// A reply that was not charged costs nothing.
async function askCost(id, messageId) {
  const cost = await findCost(messageId);
  if (!cost) return;
  void showCredit();
  const shown = held(id)?.messages[messageId];
  if (shown) shown.cost = cost;
  await store.mark(id, ({ messages }) => messages[messageId] && { messages: { ...messages, [messageId]: { ...messages[messageId], cost } } });
  if (id !== conversation.id) return;
  const view = views.get(messageId);
  if (view) showFoot(view);
  showTotal();
}

function stop(id = conversation.id) {
  runs.get(id)?.aborting.abort();
}

function showRunning() {
  byId("stop").hidden = !isRunning();
  byId("send").hidden = isRunning();
  byId("chat").toggleAttribute("data-running", isRunning()); // nothing can be done with messages meanwhile
}

// The composer

function edit(message) {
  if (isRunning()) return;
  keepDraftFiles();
  editing = message;
  prompt.value = message.text;
  attachments.show((message.files ?? []).filter((file) => !file.isLeftOut));
  byId("editing").hidden = false;
  prompt.focus();
}

function stopEditing() {
  if (!editing) return;
  editing = null;
  byId("editing").hidden = true;
  showDraft();
}

// A conversation that is not saved yet keeps its draft under no name.
const draftName = () => `draft-${conversation.head ? conversation.id : ""}`;

function keepDraft() {
  if (!editing) store.set(draftName(), prompt.value);
}

function keepDraftFiles() {
  if (!editing) draftFiles.set(draftName(), attachments.files);
}

function showDraft() {
  prompt.value = store.setting(draftName());
  attachments.show(draftFiles.get(draftName()) ?? []);
}

function forgetDraft() {
  store.set(draftName(), "");
  draftFiles.delete(draftName());
  attachments.show([]);
}

// Conversations

async function open(id) {
  stopEditing();
  keepDraftFiles();
  const found = runs.get(id)?.asked ?? (id && (await store.get(id)));
  conversation = runs.get(id)?.asked ?? (found || newConversation());
  location.hash = conversation.head ? conversation.id : "";
  showDraft();
  if (!isRunning()) endLeft();
  show();
  showRunning();
  closeDrawer();
  askCosts();
  await showList();
  prompt.focus();
}

// What replies cost that ended early, and a title that a reload interrupted.
function askCosts() {
  for (const { id, state, cost } of Object.values(conversation.messages)) {
    if (EARLY_ENDS.includes(state) && !cost) void askCost(conversation.id, id);
  }
  if (conversation.titleCost === null) void askTitleCost(conversation.id);
}

const list = new ConversationList(open, { pin, rename, "export-one": ({ id }) => exportThese([id]), delete: remove });

async function showList() {
  const found = await store.list(byId("search").value);
  list.show(found, conversation.id);
  byId("no-conversations").hidden = found.length > 0 || !byId("search").value;
}

// Changes what the list shows of a conversation, be it open or not.
async function mark(id, fieldsOf) {
  const marked = await store.mark(id, fieldsOf);
  Object.assign(held(id) ?? {}, marksOf(marked));
  showTitle();
  showTotal();
  await showList();
}

function pin({ id, pinned }) {
  return mark(id, () => ({ pinned: !pinned }));
}

async function rename({ id, title }) {
  const given = await question({ title: "Rename the conversation", label: "Title", value: title, yes: "Rename" });
  if (given?.trim()) await mark(id, () => ({ title: given.trim().slice(0, TITLE_CHARS_MAX), titleBy: "person" }));
}

async function remove({ id, title }) {
  if (!(await question({ title: "Delete this conversation?", text: `“${title}” and its files cannot be brought back.`, yes: "Delete" }))) return;
  const isShown = id === conversation.id;
  stop(id);
  await Promise.all([store.remove(id), files.removeOf(id)]);
  if (isShown) await open("");
  else await showList();
  draftFiles.delete(`draft-${id}`);
}

async function removeAll() {
  const text = "All conversations, files, drafts and instructions in this browser are deleted. They cannot be brought back.";
  if (!(await question({ title: "Delete everything?", text, yes: "Delete all" }))) return;
  for (const id of runs.keys()) stop(id);
  await Promise.all([store.removeAll(), files.removeAll()]);
  stopEditing();
  draftFiles.clear();
  attachments.show([]);
  showSettings();
  await open("");
}

async function exportThese(ids) {
  try {
    const { exported } = await import("./chat_archive.js");
    const { name, archive } = await exported(ids, store, files);
    const address = URL.createObjectURL(archive);
    element("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  } catch (error) {
    thread.showError(error);
  }
}

async function exportAll() {
  await exportThese((await store.list()).map(({ id }) => id));
}

async function importFile(file) {
  if (!file) return;
  try {
    const { imported } = await import("./chat_archive.js");
    const count = await imported(file, store, files);
    byId("status").textContent = `${count} ${count === 1 ? "conversation was" : "conversations were"} imported.`;
    await showList();
  } catch (error) {
    thread.showError(error);
  }
  byId("import-file").value = "";
}

async function instruct() {
  const given = await question({
    title: "Instructions",
    text: "Sent with every message of every conversation, before it. Kept in this browser.",
    label: "How should the model answer?",
    value: store.setting("instructions"),
    rows: 6,
    yes: "Save",
  });
  if (given !== null) store.set("instructions", given.trim());
  showSettings();
}

// Whether the service may add search results or notes, in this conversation.
async function turn({ value: part, checked }) {
  const others = (conversation.off ?? []).filter((one) => one !== part);
  Object.assign(conversation, { off: checked ? others : [...others, part], changed: Date.now() });
  if (conversation.head) await save(conversation);
}

function showSettings() {
  byId("instructions").textContent = store.setting("instructions") ? "Instructions ✓" : "Instructions";
  byId("titles").checked = store.setting("titles") !== "off";
  byId("forgets").checked = store.setting("forgets") === "on";
}

function openDrawer() {
  drawer.classList.add("open");
  byId("open-drawer").setAttribute("aria-expanded", "true");
  byId("new").focus();
}

function closeDrawer() {
  drawer.classList.remove("open");
  byId("open-drawer").setAttribute("aria-expanded", "false");
}

// Keys

const isWriting = (target) => target.matches("input, textarea, select, [contenteditable]");

function pressed(event) {
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("#question[open], :popover-open")) return;
  if (event.target === prompt && event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    void send(prompt.value);
  } else if (event.target === prompt && event.key === "ArrowUp" && !prompt.value) {
    const last = pathTo(conversation, conversation.head).findLast((message) => message.role === "user");
    if (last) edit(last);
    event.preventDefault();
  } else if (event.key === "Escape") {
    if (isRunning()) stop();
    else if (editing) stopEditing();
    else closeDrawer();
  } else if (event.key === "/" && !isWriting(event.target)) {
    event.preventDefault();
    prompt.focus();
  }
}

const ON_CLICK = {
  new: () => open(""),
  "delete-all": removeAll,
  export: exportAll,
  import: () => byId("import-file").click(),
  instructions: instruct,
  stop: () => stop(),
  "cancel-edit": stopEditing,
  "open-drawer": openDrawer,
  "close-drawer": closeDrawer,
};

for (const [id, act] of Object.entries(ON_CLICK)) byId(id).addEventListener("click", act);
for (const choice of thread.empty.querySelectorAll("button")) choice.addEventListener("click", () => send(choice.textContent));
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  void send(prompt.value);
});
byId("titles").addEventListener("change", (event) => store.set("titles", event.target.checked ? "" : "off"));
byId("forgets").addEventListener("change", (event) => store.set("forgets", event.target.checked ? "on" : ""));
byId("search").addEventListener("input", showList);
byId("import-file").addEventListener("change", (event) => importFile(event.target.files[0]));
for (const one of switches) one.addEventListener("change", () => turn(one));
picker.addEventListener("change", () => {
  store.set("class", picker.value);
  showTerms();
  const children = childrenOf(conversation);
  for (const view of views.values()) showFoot(view, children);
});
prompt.addEventListener("input", keepDraft);
document.addEventListener("keydown", pressed);
document.addEventListener("visibilitychange", async () => {
  if (document.hidden) keepSeen();
  if (document.hidden || isRunning() || editing) return;
  const saved = await store.get(conversation.id); // another tab may have changed it
  if (isRunning() || (saved && saved.id !== conversation.id)) return;
  if (saved && saved.changed > conversation.changed) {
    conversation = saved;
    show();
  }
  Object.assign(conversation, marksOf(saved));
  showTitle();
  await showList();
});
addEventListener("pagehide", keepSeen);
addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (id && id !== conversation.id) void open(id);
});

const kept = store.setting("class");
if ([...picker.options].some(({ value }) => value === kept)) picker.value = kept;
showTerms();
showSettings();
await open(location.hash.slice(1));
byId("chat").dataset.ready = "true";
