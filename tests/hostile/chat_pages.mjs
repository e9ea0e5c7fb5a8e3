// Runs what the chat does with a file that is imported, without a browser: each line of the input is a file, in base64, and
// is answered by a line with the CPU time that it took in µs, and with what was said, or how many conversations there are.
import { createInterface } from "node:readline";

globalThis.document = { querySelectorAll: () => [], addEventListener() {} };
const STATIC = new URL("../../src/cadenza/parts/site/static/", import.meta.url);
const [{ exported, imported }, chat] = await Promise.all(["chat_archive.js", "chat_store.js"].map((name) => import(new URL(name, STATIC))));

// Imports a file, looks for the newest end of each conversation, and exports them again.
async function move(file) {
  const [kept, data] = [new Map(), new Map()];
  const store = { save: async (one) => kept.set(one.id, one), get: async (id) => structuredClone(kept.get(id)) };
  const files = { put: async (_, { id }, given) => data.set(id, given), find: async (id) => data.get(id) };
  const count = await imported(file, store, files);
  for (const one of kept.values()) {
    const [first] = Object.keys(one.messages);
    if (first) chat.pathTo(one, chat.endOf(one, first));
  }
  await exported([...kept.keys()], store, files);
  return count;
}

for await (const line of createInterface({ input: process.stdin })) {
  const file = new Blob([Buffer.from(line, "base64")]);
  const before = process.cpuUsage();
  const said = await move(file).catch((error) => error.message);
  const { user, system } = process.cpuUsage(before);
  process.stdout.write(`${JSON.stringify({ us: user + system, said })}\n`);
}
