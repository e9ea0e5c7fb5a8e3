// The OpenAI SDK for Node: create, stream, the tool runner and parse. Prints what it got as JSON.

import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const DEGREES = { Oslo: 4, Rome: 24 };
const calls = [];
const getWeather = {
  name: 'get_weather',
  description: 'The temperature of a city in degrees.',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  parse: JSON.parse,
  function: ({ city }) => {
    calls.push(['get_weather', { city }]);
    return String(DEGREES[city]);
  },
};

const client = new OpenAI({ baseURL: process.env.CADENZA_BASE_URL, apiKey: process.env.CADENZA_API_KEY });
const ask = { model: 'auto', messages: [{ role: 'user', content: 'Which is warmer, Oslo or Rome?' }] };
const plain = await client.chat.completions.create(ask);
const pieces = [];
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  pieces.push(chunk.choices[0]?.delta.content);
}
const tools = [{ type: 'function', function: getWeather }];
const results = await client.chat.completions.runTools({ ...ask, tools, stream: true }).finalContent();
const format = zodResponseFormat(z.object({ city: z.string(), degrees: z.number() }), 'report');
const parsed = await client.chat.completions.parse({ ...ask, response_format: format });
process.stdout.write(
  JSON.stringify({
    plain: plain.choices[0].message.content,
    stream: pieces.filter(Boolean),
    calls,
    results,
    report: parsed.choices[0].message.parsed,
  }),
);
