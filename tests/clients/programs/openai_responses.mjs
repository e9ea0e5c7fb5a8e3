// The OpenAI SDK for Node on the Responses API: create, its stream helper, calls, parse, an image, errors and an aborted
// stream. Prints what it got as JSON.

import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const DEGREES = { Oslo: 4, Rome: 24 };
const { CADENZA_BASE_URL, CADENZA_API_KEY, PIXEL } = process.env;
const client = new OpenAI({ baseURL: CADENZA_BASE_URL, apiKey: CADENZA_API_KEY, maxRetries: 0 });
const ask = { model: 'auto', input: 'Which is warmer, Oslo or Rome?' };
const errorOf = (promise) => promise.then(() => '', (error) => error.constructor.name);

const plain = await client.responses.create(ask);
const pieces = [];
const streamed = client.responses.stream(ask);
streamed.on('response.output_text.delta', ({ delta }) => pieces.push(delta));
await streamed.finalResponse();

const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const tools = [{ type: 'function', name: 'get_weather', parameters, strict: false }];
const { output } = await client.responses.stream({ ...ask, tools }).finalResponse();
const called = output.filter((item) => item.type === 'function_call');
const calls = called.map(({ name, arguments: text }) => [name, JSON.parse(text)]);
const outputs = called.map(({ call_id }, place) => {
  return { type: 'function_call_output', call_id, output: String(DEGREES[calls[place][1].city]) };
});
const input = [{ role: 'user', content: ask.input }, ...output, ...outputs];
const results = await client.responses.create({ ...ask, input, tools });

const format = zodTextFormat(z.object({ city: z.string(), degrees: z.number() }), 'report');
const parsed = await client.responses.parse({ ...ask, text: { format } });
const image = { type: 'input_image', image_url: `data:image/png;base64,${PIXEL}`, detail: 'auto' };
await client.responses.create({ ...ask, input: [{ role: 'user', content: [image] }] });
const left = client.responses.stream({ ...ask, input: 'Say it slowly.' });
left.on('response.output_text.delta', () => left.abort());
const wrong = client.withOptions({ apiKey: 'sk-cdz-wrong' });
const errors = [
  await errorOf(left.finalResponse()),
  await errorOf(wrong.responses.create(ask)),
  await errorOf(client.responses.create({ ...ask, input: [] })),
  await errorOf(client.responses.stream({ ...ask, input: 'Break off.' }).finalResponse()),
];
process.stdout.write(
  JSON.stringify({
    plain: plain.output_text,
    stream: pieces,
    calls,
    results: results.output_text,
    report: parsed.output_parsed,
    errors,
  }),
);
