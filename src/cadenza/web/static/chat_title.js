// Asks the class of a reply for the title of its conversation: one short request, which is charged like any other.

import { post } from "./chat_stream.js";

const TOKENS_MAX = 40;
const TEXT_CHARS_MAX = 1000; // of the question, and of the reply
const TITLE_CHARS_MAX = 60;
const ORDER = "Give this conversation a title of two to six words, in the language of the question. Reply with the title alone.";

// Returns {title, titleCost}, in dollars. The title is empty if the class wrote something else.
export async function writeTitle(question, reply) {
  const said = question.text || question.files.map(({ name }) => name).join(", ");
  const content = `Question: ${said.slice(0, TEXT_CHARS_MAX)}\n\nReply: ${reply.text.slice(0, TEXT_CHARS_MAX)}\n\n${ORDER}`;
  const order = { model: reply.cost.class, messages: [{ role: "user", content }], max_tokens: TOKENS_MAX, usage: { include: true } };
  const response = await post("/chat", JSON.stringify(order), undefined, { "x-cadenza-grounding": "none" });
  const { choices, usage } = await response.json();
  const [{ message, finish_reason }] = choices;
  return { title: finish_reason === "stop" ? clean(message.content ?? "") : "", titleCost: usage.cost.toFixed(9) };
}

// The first line, without what models put around a title. A long line is none: small models answer the question again.
function clean(text) {
  const [line] = text.trim().replace(/^[#*_\s]*title:/i, "").trim().split("\n");
  const title = line.replace(/\p{C}/gu, "").replace(/^[#*_\s"'“„«`]+|[*_\s"'”“»`.]+$/g, "");
  return title.length <= TITLE_CHARS_MAX ? title : "";
}
