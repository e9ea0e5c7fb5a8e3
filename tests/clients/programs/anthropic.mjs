// Anthropic's SDK for Node: create, its stream helper, its tool runner, parse, an image, errors and an aborted stream.
// Prints what it got as JSON.

import Anthropic from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';

const DEGREES = { Oslo: 4, Rome: 24 };
const { CADENZA_BASE_URL, CADENZA_API_KEY, PIXEL } = process.env;
const calls = [];
const getWeather = betaZodTool({
  name: 'get_weather',
  description: 'The temperature of a city in degrees.',
  inputSchema: z.object({ city: z.string() }),
  run: ({ city }) => {
    calls.push(['get_weather', { city }]);
    return String(DEGREES[city]);
  },
});

const client = new Anthropic({ baseURL: CADENZA_BASE_URL.replace('/v1', ''), apiKey: CADENZA_API_KEY, maxRetries: 0 });
const asking = (content) => ({ model: 'auto', max_tokens: 100, messages: [{ role: 'user', content }] });
const ask = asking('Which is warmer, Oslo or Rome?');
const errorOf = (promise) => promise.then(() => '', (error) => error.constructor.name);

const plain = await client.messages.create(ask);
const pieces = [];
await client.messages.stream(ask).on('text', (text) => pieces.push(text)).finalMessage();
const results = await client.beta.messages.toolRunner({ ...ask, tools: [getWeather], stream: true }).runUntilDone();
const format = zodOutputFormat(z.object({ city: z.string(), degrees: z.number() }));
const parsed = await client.messages.parse({ ...ask, output_config: { format } });
const source = { type: 'base64', media_type: 'image/png', data: PIXEL };
await client.messages.create(asking([{ type: 'image', source }]));
const left = client.messages.stream(asking('Say it slowly.'));
left.on('text', () => left.abort());
const wrong = client.withOptions({ apiKey: 'sk-cdz-wrong' });
const errors = [
  await errorOf(left.done()),
  await errorOf(wrong.messages.create(ask)),
  await errorOf(client.messages.create({ ...ask, messages: [] })),
  await errorOf(client.messages.stream(asking('Break off.')).finalMessage()),
];
process.stdout.write(
  JSON.stringify({
    plain: plain.content[0].text,
    stream: pieces,
    calls,
    results: results.content[0].text,
    report: parsed.parsed_output,
    errors,
  }),
);
