// The console of /docs: sends one request with a key that stays in this page, and shows the reply as it arrives.
const form = document.querySelector("#console");
const part = (name) => form.querySelector(`[data-part="${name}"]`);
const problem = form.querySelector('[role="alert"]');
let running = null;

function chosen() {
  return form.operation.selectedOptions[0].dataset;
}

function choose() {
  form.path.value = chosen().path;
  form.body.value = chosen().body;
  part("body").hidden = chosen().method !== "POST";
}

function fail(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

function showHead(reply, tookMs) {
  part("reply").hidden = false;
  form.querySelector('output[name="status"]').textContent = `${reply.status}, first byte after ${tookMs} ms`;
  const rows = [...reply.headers].flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const detail = document.createElement("dd");
    term.textContent = name;
    detail.textContent = value;
    return [term, detail];
  });
  part("headers").replaceChildren(...rows);
}

function pretty(text, kind) {
  if (!kind.includes("json")) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function showBody(reply) {
  const target = part("text");
  target.textContent = "";
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    target.append(value);
  }
  target.textContent = pretty(target.textContent, reply.headers.get("content-type") ?? "");
}

async function send() {
  if (!form.path.value.startsWith("/v1/")) return fail("The address begins with /v1/.");
  fail("");
  running = new AbortController();
  form.elements.stop.disabled = false;
  const begun = performance.now();
  try {
    const headers = form.key.value ? { authorization: `Bearer ${form.key.value.trim()}` } : {};
    const method = chosen().method;
    const body = method === "POST" ? form.body.value : undefined;
    if (body !== undefined) headers["content-type"] = "application/json";
    const reply = await fetch(form.path.value, { method, headers, body, credentials: "omit", signal: running.signal });
    showHead(reply, Math.round(performance.now() - begun));
    await showBody(reply);
  } catch (error) {
    fail(error.name === "AbortError" ? "You stopped the request." : `The request failed: ${error.message}.`);
  } finally {
    running = null;
    form.elements.stop.disabled = true;
  }
}

form.operation.addEventListener("change", choose);
form.elements.stop.addEventListener("click", () => running?.abort());
form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) send();
});
choose();
