// The OpenAI SDK for Node: create, stream, the tool runner, parse, an image, errors and an aborted stream. Prints what it
// got as JSON.

import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const DEGREES = { Oslo: 4, Rome: 24 };
const { CADENZA_BASE_URL, CADENZA_API_KEY, PIXEL } = process.env;
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

const client = new OpenAI({ baseURL: CADENZA_BASE_URL, apiKey: CADENZA_API_KEY, maxRetries: 0 });
const asking = (content) => ({ model: 'auto', messages: [{ role: 'user', content }] });
const ask = asking('Which is warmer, Oslo or Rome?');
const errorOf = (promise) => promise.then(() => '', (error) => error.constructor.name);

const plain = await client.chat.completions.create(ask);
const pieces = [];
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  pieces.push(chunk.choices[0]?.delta.content);
}
const tools = [{ type: 'function', function: getWeather }];
const results = await client.chat.completions.runTools({ ...ask, tools, stream: true }).finalContent();
const format = zodResponseFormat(z.object({ city: z.string(), degrees: z.number() }), 'report');
const parsed = await client.chat.completions.parse({ ...ask, response_format: format });
const image_url = { url: `data:image/png;base64,${PIXEL}` };
await client.chat.completions.create(asking([{ type: 'image_url', image_url }]));
const left = client.chat.completions.stream(asking('Say it slowly.'));
left.on('content', () => left.abort());
const wrong = client.withOptions({ apiKey: 'sk-cdz-wrong' });
const errors = [
  await errorOf(left.finalMessage()),
  await errorOf(wrong.chat.completions.create(ask)),
  await errorOf(client.chat.completions.create({ ...ask, messages: [] })),
  await errorOf(client.chat.completions.stream(asking('Break off.')).finalMessage()),
];
process.stdout.write(
  JSON.stringify({
    plain: plain.choices[0].message.content,
    stream: pieces.filter(Boolean),
    calls,
    results,
    report: parsed.choices[0].message.parsed,
    errors,
  }),
);
