// What is said about replies: their tokens, their cost, and what the service added to the question.

import { dollars, nanoDollars } from "./page.js";

const COST_DIGITS = 6; // of a reply, so that replies can be compared, and of all of them
const STATES = { stopped: "Stopped by you", left: "Ended because you left the page", broken: "Broke off", length: "Cut at its longest" };
const ADDED = { memory: ["note", "notes"], search: ["source", "sources"], attachments: ["file", "files"], cut: ["of them in part", "of them in part"] };

// About what so many tokens of input cost, at a price for a million.
export function estimate(tokens, price) {
  return dollars(BigInt(Math.ceil(tokens * price * 1000)));
}

// What all replies of a conversation cost, and its title.
export function totalOf(conversation) {
  const costs = [conversation.titleCost, ...Object.values(conversation.messages).map(({ cost }) => cost?.cost)].filter(Boolean);
  return costs.length ? `${dollars(costs.reduce((sum, cost) => sum + nanoDollars(cost), 0n), COST_DIGITS)} so far` : "";
}

// The line below a reply.
export function noteOf(message) {
  const parts = STATES[message.state] ? [STATES[message.state]] : [];
  if (message.cost?.class) {
    const { prompt_tokens: input, completion_tokens: output } = message.cost;
    parts.push(message.cost.class, `${input.toLocaleString()} in, ${output.toLocaleString()} out`, dollars(nanoDollars(message.cost.cost), COST_DIGITS));
  }
  const added = addedText(message.added ?? {});
  return [...parts, ...(added ? [added] : [])].join(" · ");
}

function addedText(counts) {
  const known = Object.entries(ADDED).filter(([part]) => counts[part]);
  return known
    .map(([part, [one, many]]) => (counts[part] === "failed" ? `${part} failed` : `${counts[part]} ${counts[part] === 1 ? one : many}`))
    .join(", ");
}
