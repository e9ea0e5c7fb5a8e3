// The list of conversations: pinned ones, then the others by day, newest first. Each has a menu.

import { button, byId, element } from "./chat_elements.js";
import { localTime } from "./page.js";

const DAY_MS = 86_400_000;

// How many days ago a time was, by the person's calendar.
function daysSince(at) {
  const [today, day] = [new Date(), new Date(at)].map((one) => one.setHours(0, 0, 0, 0));
  return Math.round((today - day) / DAY_MS);
}

function groupOf({ pinned, changed }) {
  const days = daysSince(changed);
  if (pinned) return "Pinned";
  if (days < 1) return "Today";
  if (days < 2) return "Yesterday";
  if (days < 7) return "Last 7 days";
  if (days < 30) return "Last 30 days";
  return new Date(changed).toLocaleDateString("en", { month: "long", year: "numeric" });
}

// The time of today's and yesterday's conversations, else the day, with its year if that is another one.
function dateOf(changed) {
  const at = new Date(changed);
  const [day, clock] = localTime(at).split(", ");
  const textContent = daysSince(changed) < 2 ? clock : day.replace(` ${new Date().getFullYear()}`, "");
  return element("time", { dateTime: at.toISOString(), title: localTime(at), textContent });
}

export class ConversationList {
  #chosen = null; // the conversation whose menu is open

  // `open` gets the id of a conversation. `actions` are by the ids of the menu's buttons, and get what `show` was given.
  constructor(open, actions) {
    this.root = byId("conversations");
    this.menu = byId("options");
    this.open = open;
    for (const [id, act] of Object.entries(actions)) {
      byId(id).addEventListener("click", () => {
        this.menu.hidePopover();
        act(this.#chosen);
      });
    }
  }

  // Shows conversations, which are sorted. What has the focus keeps it.
  show(found, shownId) {
    const focused = document.activeElement.id;
    const groups = Map.groupBy(found.toSorted((one, other) => Boolean(other.pinned) - Boolean(one.pinned)), groupOf);
    const parts = Array.from(groups, ([name, ones]) => {
      const lines = ones.map((one) => this.#line(one, one.id === shownId));
      return [element("h2", { textContent: name }), element("ul", { ariaLabel: name }, ...lines)];
    });
    this.root.replaceChildren(...parts.flat());
    if (focused) byId(focused)?.focus();
  }

  #line(one, isShown) {
    const title = element("span", { className: "truncate", textContent: one.title || "Without a title", title: one.title });
    const choose = element("button", { type: "button", id: `open-${one.id}`, onclick: () => this.open(one.id) }, title, dateOf(one.changed));
    if (isShown) choose.setAttribute("aria-current", "true");
    const more = button("⋯", "More", () => this.#showMenu(one, more));
    more.id = `more-${one.id}`;
    more.setAttribute("aria-describedby", choose.id);
    more.popoverTargetElement = this.menu;
    return element("li", { className: isShown ? "current" : "" }, choose, more);
  }

  // The button opens the menu itself, after this.
  #showMenu(one, more) {
    this.#chosen = one;
    byId("pin").textContent = one.pinned ? "Unpin" : "Pin";
    const { top, bottom, right } = more.getBoundingClientRect();
    const place = bottom < innerHeight / 2 ? { top: `${bottom}px`, bottom: "auto" } : { top: "auto", bottom: `${innerHeight - top}px` };
    Object.assign(this.menu.style, place, { right: `${innerWidth - right}px` });
  }
}
