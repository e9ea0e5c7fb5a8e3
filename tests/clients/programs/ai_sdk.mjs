// The AI SDK of Vercel with its provider for OpenAI-compatible services, or on the Responses API. Prints what it got as
// JSON.

import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const DEGREES = { Oslo: 4, Rome: 24 };
const prompt = 'Which is warmer, Oslo or Rome?';
const calls = [];
const getWeather = tool({
  description: 'The temperature of a city in degrees.',
  inputSchema: z.object({ city: z.string() }),
  execute: ({ city }) => {
    calls.push(['get_weather', { city }]);
    return String(DEGREES[city]);
  },
});

async function collect(streamed) {
  const pieces = [];
  for await (const piece of streamed.textStream) pieces.push(piece);
  return pieces;
}

const where = { baseURL: process.env.CADENZA_BASE_URL, apiKey: process.env.CADENZA_API_KEY };
const cadenza = createOpenAICompatible({ name: 'cadenza', supportsStructuredOutputs: true, ...where });
const model = process.argv[2] === 'responses' ? createOpenAI(where)('auto') : cadenza('auto');
const providerOptions = { openai: { store: false } };
const plain = await generateText({ model, providerOptions, prompt });
const pieces = await collect(streamText({ model, providerOptions, prompt }));
const tools = { get_weather: getWeather };
const results = await collect(streamText({ model, providerOptions, prompt, tools, stopWhen: stepCountIs(3) }));
const schema = z.object({ city: z.string(), degrees: z.number() });
const report = await generateText({ model, providerOptions, prompt, output: Output.object({ schema }) });
process.stdout.write(
  JSON.stringify({ plain: plain.text, stream: pieces, calls, results: results.join(''), report: report.output }),
);
