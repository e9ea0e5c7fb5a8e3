// What is said about replies: their tokens, their cost, and what the service added to the question.

const NANO = 1_000_000_000n;
const STATES = { stopped: "Stopped", broken: "Broke off", length: "Cut at its longest" };
const ADDED = { memory: ["note", "notes"], search: ["source", "sources"], attachments: ["file", "files"], cut: ["of them in part", "of them in part"] };

const nano = (dollars) => {
  const [whole, part] = dollars.split(".");
  return BigInt(whole) * NANO + BigInt(part.padEnd(9, "0"));
};

const dollars = (amount) => {
  const part = String(amount % NANO).padStart(9, "0").replace(/0+$/, "").padEnd(2, "0");
  return `$${amount / NANO}.${part}`;
};

// About what so many tokens of input cost, at a price for a million. It is rounded up.
export function estimate(tokens, price) {
  const cost = (tokens * price) / 1e6;
  const digits = cost >= 0.1 ? 2 : cost >= 0.01 ? 3 : 4;
  return `$${(Math.ceil(cost * 10 ** digits) / 10 ** digits).toFixed(digits)}`;
}

// The sum of all replies of a conversation, and of its title.
export function totalOf(conversation) {
  const costs = [conversation.titleCost, ...Object.values(conversation.messages).map(({ cost }) => cost)].filter(Boolean);
  const tokens = costs.reduce((sum, cost) => sum + cost.prompt_tokens + cost.completion_tokens, 0);
  const spent = costs.reduce((sum, cost) => sum + nano(cost.cost), 0n);
  return costs.length ? `${tokens.toLocaleString()} tokens · ${dollars(spent)}` : "";
}

// The line below a reply.
export function noteOf(message) {
  const parts = STATES[message.state] ? [STATES[message.state]] : [];
  if (message.cost) {
    const { prompt_tokens: input, completion_tokens: output } = message.cost;
    parts.push(message.cost.class, `${input.toLocaleString()} in, ${output.toLocaleString()} out`, dollars(nano(message.cost.cost)));
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
