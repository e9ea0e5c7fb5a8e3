// Talks to the service: asks for a reply and reads its events, renders Markdown, finds out what a stopped reply cost.

const API = "/platform/api";
const RENDER_BYTES_MAX = 60_000;
const COST_TRIES = 6;

const headers = () => ({ "content-type": "application/json", "x-cadenza-csrf": document.body.dataset.csrf });

// What the service says when it refuses, with its status, how long to wait, and whether the same request fails again.
class Refused extends Error {
  constructor(message, status, waitS = 0, isFinal = false) {
    super(message);
    Object.assign(this, { status, waitS, isFinal });
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? "The service gave no answer that can be read.";
  const { status, headers } = response;
  return new Refused(message, status, Number(headers.get("retry-after")) || 0, headers.get("x-should-retry") === "false");
}

export async function post(path, body, signal, more = {}) {
  let response;
  try {
    response = await fetch(API + path, { method: "POST", headers: { ...headers(), ...more }, body, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The service cannot be reached. Check your connection.", 0);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

// The events of a reply, one by one; the first says what the service added. Ends after the last; throws Refused, or AbortError
// when it was stopped. `id` names the request, to find its cost. What the service could add is turned off by its name: "search", "memory".
export async function* ask(body, id, turnedOff, signal) {
  const switches = turnedOff.map((part) => `${part}=off`).join(", ");
  const response = await post("/chat", body, signal, { "x-request-id": id, ...(switches && { "x-cadenza-grounding": switches }) });
  const added = (response.headers.get("x-cadenza-grounding") ?? "").matchAll(/(\w+)=(\w+)/g);
  yield { type: "added", counts: Object.fromEntries(Array.from(added, ([, part, count]) => [part, count === "failed" ? count : Number(count)])) };
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new Refused("The connection broke off before the end of the reply.", 0);
    });
    if (done) throw new Refused("The connection broke off before the end of the reply.", 0);
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.trim();
      if (data === "data: [DONE]") return;
      if (!data.startsWith("data: ")) continue; // a ping
      const fields = JSON.parse(data.slice(6));
      if (fields.error) throw new Refused(fields.error.message, 200);
      yield fields;
    }
  }
}

// The HTML of each text; null for those that are too long. Texts go in groups that the service takes at once.
export async function render(texts) {
  const html = [];
  let group = [];
  let bytes = 0;
  const flush = async () => {
    if (group.length) html.push(...(await (await post("/render", JSON.stringify({ texts: group }))).json()).data);
    group = [];
    bytes = 0;
  };
  for (const text of texts) {
    const size = new TextEncoder().encode(JSON.stringify(text)).length;
    if (size > RENDER_BYTES_MAX) {
      await flush();
      html.push(null);
      continue;
    }
    if (bytes + size > RENDER_BYTES_MAX || group.length === 100) await flush();
    group.push(text);
    bytes += size;
  }
  await flush();
  return html;
}

// How large a file is: {parts, tokens, least_tokens}. Throws Refused, with status 400 for a file that cannot be read.
export async function measure(name, data) {
  return (await post(`/chat/file?name=${encodeURIComponent(name)}`, data, undefined, { "content-type": "application/octet-stream" })).json();
}

// What a request cost whose reply did not say it: null if that is not known, {} if it was not charged. The charge is
// made soon after its stream has ended.
export async function findCost(id) {
  let response = null;
  for (let tries = 0; tries < COST_TRIES; tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 250 * 2 ** tries));
    response = await fetch(`${API}/chat/${encodeURIComponent(id)}/cost`).catch(() => null);
    if (response?.ok) return response.json();
    if (response && response.status !== 404) return null;
  }
  return response && {};
}
