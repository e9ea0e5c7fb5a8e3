// Keeps the operator's list of requests up to date, every two seconds while the page is visible.
// The page itself is read again, so that the list is made in one place.

const EVERY_MS = 2000;
const list = document.querySelector('[data-live="requests"]');
const age = document.querySelector('[data-live="age"]');

function isInUse() {
  return list.contains(document.activeElement) && document.activeElement.tagName === "A";
}

async function refresh() {
  const reply = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!reply.ok || reply.redirected) throw new Error(String(reply.status));
  const found = new DOMParser().parseFromString(await reply.text(), "text/html").querySelector('[data-live="requests"]');
  const scrolled = list.querySelector(".scroll")?.scrollLeft ?? 0;
  list.replaceChildren(...found.childNodes);
  list.querySelector(".scroll")?.scrollTo({ left: scrolled });
}

async function follow() {
  for (;;) {
    await new Promise((resume) => setTimeout(resume, EVERY_MS));
    if (document.visibilityState !== "visible" || isInUse()) continue;
    try {
      await refresh();
      age.textContent = "Live";
    } catch {
      age.textContent = "Not up to date: the service did not answer.";
    }
  }
}

follow();
