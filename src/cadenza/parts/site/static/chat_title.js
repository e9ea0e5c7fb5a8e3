// Asks the class of a reply for the title of its conversation: one short request, which is charged like any other.

import { post } from "./chat_stream.js";

const TOKENS_MAX = 40;
const TEXT_CHARS_MAX = 1000; // of the question, and of the reply
const WORDS_MAX = 8;
const CHARS_MAX = 60; // for languages that write no spaces
const SENTENCE = /^(I['’]m|I am|Here)\b|[.!?。！？]$/i;
const ORDER = "Write a title for this conversation: 2 to 6 words, no sentence, in the language of the question. Reply with the title alone.";

// Returns {title, titleCost}, in dollars. The title is empty if the class wrote something else. `id` names the request.
export async function writeTitle(id, question, reply) {
  const said = question.text || question.files.map(({ name }) => name).join(", ");
  const content = `Question: ${said.slice(0, TEXT_CHARS_MAX)}\n\nReply: ${reply.text.slice(0, TEXT_CHARS_MAX)}\n\n${ORDER}`;
  const order = { model: reply.cost.class, messages: [{ role: "user", content }], max_tokens: TOKENS_MAX, usage: { include: true } };
  const response = await post("/chat", JSON.stringify(order), undefined, { "x-request-id": id, "x-cadenza-grounding": "none" });
  const { choices, usage } = await response.json();
  const [{ message, finish_reason }] = choices;
  return { title: finish_reason === "stop" ? titleIn(message.content ?? "", reply.text) : "", titleCost: usage.cost.toFixed(9) };
}

// The first line, without what models put around a title. Small models answer the question again: a sentence, a part of
// the reply or a long line is no title.
function titleIn(written, reply) {
  const [line] = written.trim().replace(/^[#*_\s]*title:/i, "").trim().split("\n");
  const title = line.replace(/\p{C}/gu, "").replace(/^[#*_\s"'“„«`]+|[*_\s"'”“»`]+$/g, "");
  const isTitle = !SENTENCE.test(title) && !reply.includes(title) && title.split(/\s+/).length <= WORDS_MAX && title.length <= CHARS_MAX;
  return isTitle ? title : "";
}
