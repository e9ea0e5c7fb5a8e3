// Makes and uses passkeys. Their buttons are shown only in browsers that can.
const api = "/platform/api";
let csrf = document.body.dataset.csrf;

async function post(path, body) {
  const reply = await fetch(api + path, {
    method: "POST",
    headers: { "content-type": "application/json", accept: "application/json", "x-cadenza-csrf": csrf },
    body: body && JSON.stringify(body),
  });
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error.message);
  if (found.csrf) useToken(found.csrf);
  return found;
}

// The session has a new secret, and the forms of this page need its token.
function useToken(token) {
  csrf = token;
  for (const input of document.querySelectorAll("input[name=csrf]")) input.value = token;
}

async function use(button) {
  const options = await post("/passkeys/ask");
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(options);
  const credential = await navigator.credentials.get({ publicKey });
  const path = button.dataset.passkey === "prove" ? "/proof/passkey" : "/sign-in/passkey";
  await post(path, { credential: credential.toJSON() });
  if (button.form) button.form.submit();
  else location.assign(button.dataset.next);
}

async function add(form) {
  const options = await post("/passkeys/ask-to-add");
  const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(options);
  const credential = await navigator.credentials.create({ publicKey });
  const found = await post("/passkeys", { name: form.elements.name.value, credential: credential.toJSON() });
  if (found.recovery_codes.length === 0) {
    location.assign("/settings/security");
    return;
  }
  document.querySelector("#new-codes").textContent = found.recovery_codes.join("\n");
  const section = document.querySelector("[data-passkey-codes]");
  section.hidden = false;
  section.querySelector("h2").focus();
}

async function attempt(work, subject) {
  const shown = document.querySelector("[data-passkey-error]");
  shown.hidden = true;
  subject.setAttribute("aria-busy", "true");
  try {
    await work(subject);
  } catch (error) {
    if (error.message.startsWith("Give your password again")) {
      location.assign("/confirm?next=/settings/security");
      return;
    }
    const isRefused = error instanceof DOMException;
    shown.textContent = isRefused ? "No passkey was used. Try again, or choose another way." : error.message;
    shown.hidden = false;
  } finally {
    subject.removeAttribute("aria-busy");
  }
}

const isAddress = /^[\d.]+$|^\[/.test(location.hostname); // passkeys belong to a host name
if (window.PublicKeyCredential?.parseRequestOptionsFromJSON && !isAddress) {
  for (const part of document.querySelectorAll("[data-needs-passkeys]")) part.hidden = false;
  for (const button of document.querySelectorAll("[data-passkey]")) {
    button.addEventListener("click", () => attempt(use, button));
  }
  for (const form of document.querySelectorAll("[data-passkey-add]")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      attempt(add, form);
    });
  }
} else {
  for (const part of document.querySelectorAll("[data-no-passkeys]")) part.hidden = false;
}
