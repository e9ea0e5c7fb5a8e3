"""Examples of the reference. BASE stands for the address of the service, and the key is in $CADENZA_API_KEY.

A test runs those of curl and Python as they are shown.
"""

import msgspec

BASE = "BASE-ADDRESS"


class Example(msgspec.Struct, frozen=True):
    """The same request by three clients."""

    curl: str
    python: str
    node: str


CLIENT_PYTHON = f"""import os
from openai import OpenAI

client = OpenAI(base_url="{BASE}/v1", api_key=os.environ["CADENZA_API_KEY"])
"""
CLIENT_NODE = f"""import OpenAI from "openai";

const client = new OpenAI({{ baseURL: "{BASE}/v1", apiKey: process.env.CADENZA_API_KEY }});
"""
EXAMPLES = {
    "createChatCompletion": Example(
        curl=f"""curl -s {BASE}/v1/chat/completions \\
  -H "Authorization: Bearer $CADENZA_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "forte", "messages": [{{"role": "user", "content": "Say hello."}}]}}'
""",
        python=CLIENT_PYTHON
        + """stream = client.chat.completions.create(
    model="forte",
    messages=[{"role": "user", "content": "Say hello."}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
""",
        node=CLIENT_NODE
        + """const stream = await client.chat.completions.create({
  model: "forte",
  messages: [{ role: "user", content: "Say hello." }],
  stream: true,
});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
""",
    ),
    "listModels": Example(
        curl=f'curl -s {BASE}/v1/models -H "Authorization: Bearer $CADENZA_API_KEY"\n',
        python=CLIENT_PYTHON + "for model in client.models.list():\n    print(model.id)\n",
        node=CLIENT_NODE + "for await (const model of client.models.list()) {\n  console.log(model.id);\n}\n",
    ),
    "retrieveModel": Example(
        curl=f'curl -s {BASE}/v1/models/forte -H "Authorization: Bearer $CADENZA_API_KEY"\n',
        python=CLIENT_PYTHON + 'print(client.models.retrieve("forte"))\n',
        node=CLIENT_NODE + 'console.log(await client.models.retrieve("forte"));\n',
    ),
    "getUsage": Example(
        curl=f'curl -s "{BASE}/v1/usage?group_by=model" -H "Authorization: Bearer $CADENZA_API_KEY"\n',
        python=f"""import json
import os
from urllib.request import Request, urlopen

key = os.environ["CADENZA_API_KEY"]
request = Request("{BASE}/v1/usage?group_by=model", headers={{"Authorization": f"Bearer {{key}}"}})
print(json.load(urlopen(request))["totals"])
""",
        node=f"""const reply = await fetch("{BASE}/v1/usage?group_by=model", {{
  headers: {{ Authorization: `Bearer ${{process.env.CADENZA_API_KEY}}` }},
}});
console.log((await reply.json()).totals);
""",
    ),
}
STREAM = """data: {"id":"chatcmpl-…","object":"chat.completion.chunk","created":1767225600,"model":"forte",
       "choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}

data: {…,"choices":[{"index":0,"delta":{"content":"Hello."},"finish_reason":null}]}

data: {…,"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {…,"choices":[],"usage":{"prompt_tokens":21,"completion_tokens":3,"total_tokens":24,
       "prompt_tokens_details":{"cached_tokens":0}}}

data: [DONE]
"""
