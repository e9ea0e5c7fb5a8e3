// An agent with two tools, on the OpenAI SDK for Node. It takes its orders as JSON from the standard input,
// talks until the model calls nothing more, and prints the conversation as JSON.

import OpenAI from 'openai';
import { readFileSync } from 'node:fs';

const { baseURL, apiKey, form, messages, tools, degrees } = JSON.parse(readFileSync(0, 'utf8'));
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 100_000 });
const TURNS_MAX = 5;

function runTool({ name, arguments: text }) {
  const given = JSON.parse(text);
  if (name === 'get_weather') return String(degrees[given.city] ?? `There is no city ${given.city}.`);
  return String(given.op === 'add' ? given.a + given.b : given.a - given.b);
}

async function wholeTurn() {
  const reply = await client.chat.completions.create({ model: 'forte', messages, tools });
  return reply.choices[0].message;
}

async function streamedTurn() {
  const message = { role: 'assistant', content: null };
  const stream = await client.chat.completions.create({ model: 'forte', messages, tools, stream: true });
  for await (const chunk of stream) {
    for (const { delta } of chunk.choices) {
      if (delta.content) message.content = (message.content ?? '') + delta.content;
      for (const { index, ...call } of delta.tool_calls ?? []) {
        message.tool_calls ??= [];
        if (message.tool_calls[index]) message.tool_calls[index].function.arguments += call.function.arguments;
        else message.tool_calls[index] = call;
      }
    }
  }
  return message;
}

async function helperTurn() {
  const stream = client.chat.completions.stream({ model: 'forte', messages, tools });
  return await stream.finalMessage();
}

const takeTurn = { whole: wholeTurn, stream: streamedTurn, helper: helperTurn }[form];
for (let turn = 0; turn < TURNS_MAX; turn++) {
  const message = await takeTurn();
  messages.push(message);
  if (!message.tool_calls?.length) break;
  for (const call of message.tool_calls) {
    messages.push({ role: 'tool', tool_call_id: call.id, content: runTool(call.function) });
  }
}
process.stdout.write(JSON.stringify(messages));
