"""Each mistake of a config has its line, its key, what is allowed and, for an unknown name, the nearest one."""

# ruff: noqa: E501 a row of the table is one line
from pathlib import Path

import pytest

from cadenza.config import ConfigError, load_settings

SERVER, STORE, SHARED, LIMITS = "[server]\n", "[store]\n", "[shared_state]\n", "[limits]\n"
CHARACTER, PRICES, SEARCH, GROUNDING = "[character]\n", "[prices.mezzo]\n", "[grounding.search]\n", "[grounding]\n"
OBSERVE, RETENTION = "[observe]\n", "[retention]\n"
ENDPOINT = '[providers.acme]\nkind = "openai"\nretention = "zero"\n'
PROVIDER = '[providers.acme]\nkind = "openai"\nbase_url = "https://acme.example/v1"\nretention = "zero"\n'
EMBEDDED = '[providers.local]\nkind = "embedded"\nretention = "zero"\n'
ROUTE = '[[classes.forte.routes]]\nprovider = "acme"\nmodel = "acme-large"\n'
LOCAL_ROUTE = '[[classes.forte.routes]]\nprovider = "local"\n'
ROUTE_OF_LOCAL = EMBEDDED + LOCAL_ROUTE
GATE = ROUTE_OF_LOCAL + "[classes.forte.gate]\n"
SEARXNG = '[grounding.search]\nengine = "searxng"\nurl = "http://127.0.0.1:8888"\n'
PLATFORM = '[platform]\nbase_url = "https://chat.example.org"\n'
MAIL = '[mail]\nhost = "smtp.example.org"\nsender = "Cadenza <cadenza@example.org>"\n'
SMTP = PLATFORM + MAIL
URL = 'otlp_url = "https://collector.example.org"\n'
AFTER = {ENDPOINT: ROUTE, PROVIDER: ROUTE, EMBEDDED: LOCAL_ROUTE}
FILES = {
    "good.txt": b"Good.",
    "blank.txt": b" \n",
    "null.txt": b"s3cret\0",
    "latin.txt": b"caf\xe9 s3cret",
    "lines.txt": b"s3\ncret",
    "broken.pem": b"-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n",
}
ADDRESS = 'must be an http or https address, like "https://host/v1"'
NO_SECRETS = "must not have a user name, password, query or fragment; a key comes from the environment"
STORE_RULE = 'must be "sqlite:///path/of/a/file.db" or "postgresql://user@host/database"'
SHARED_RULE = 'must be "memory://", "valkey://host:6379/0", "valkeys://…" with TLS, or "unix:///path/of/a.sock?db=0"'
NETWORKS = 'must be a list of addresses and networks, like ["127.0.0.1", "10.0.0.0/8"]'
ZERO = 'must be exactly "zero": the service starts only if every provider has zero data retention'
VARIABLE = "must be the name of an environment variable, in capitals like ACME_API_KEY, and not the key itself"
NUMBER = "must be a number above 0 and up to 1,000,000,000"
TEXT = "must be a non-empty text without null characters"
PORT = "must be a whole number from 0 to 65,535"
ENGINES = 'must be "searxng", "brave", "tavily", "local" or "off"'
NO_CERTIFICATE = "there is no certificate in PEM format in FOLDER"
UNREADABLE = "the file cannot be read: No such file or directory"
EMPTY = "the file is empty or contains null characters"
USE_KEY = "a secret must not be in this file; use api_key_env or api_key_file"
FIRST = "must give a network by its first address; did you mean"

# What stands before a line -> the line -> the sentence after "line N: its.key".
LINES: dict[str, dict[str, str]] = {
    SERVER: {
        "PORT = 1": 'unknown key; did you mean "port"?',
        "port = true": f"{PORT}, not a boolean",
        "port = 80.0": f"{PORT}, not a number with decimals",
        "port = 65536": f"{PORT}, not 65536",
        "port = 2026-01-01": f"{PORT}, not a date or a time",
        "workers = 0": "must be a whole number from 1 to 64, not 0",
        "workers = 65": "must be a whole number from 1 to 64, not 65",
        'host = " "': TEXT,
        'host = "a\\u0000"': TEXT,
        'metrics_token = "s3cret"': "a secret must not be in this file; use metrics_token_env",
        'trusted_proxies = "127.0.0.1"': NETWORKS,
        'trusted_proxies = ["localhost"]': NETWORKS,
        "trusted_proxies = [1]": NETWORKS,
        'trusted_proxies = [["::1"]]': NETWORKS,
        "trusted_proxies = {}": NETWORKS,
        'trusted_proxies = ["*"]': NETWORKS,
        'trusted_proxies = ["10.20.0.1/16"]': f'{FIRST} "10.20.0.0/16", or "10.20.0.1" alone?',
        'trusted_proxies = ["fd00::1/8"]': f'{FIRST} "fd00::/8", or "fd00::1" alone?',
    },
    STORE: {
        "region = []": f"{TEXT}, not a list",
        'url = "mysql://me:s3cret@host/db"': STORE_RULE,
        'url = "postgres://host/db"': STORE_RULE,
        'url = "postgresql://"': STORE_RULE,
        'url = "sqlite://"': STORE_RULE,
        'url = "sqlite:///"': STORE_RULE,
        'url = "sqlite:///:memory:"': STORE_RULE,
        'url = "sqlite:///data/"': STORE_RULE,
        'url = "sqlite:///a.db?mode=ro"': STORE_RULE,
        'url = "data/cadenza.db"': STORE_RULE,
    },
    SHARED: {
        'url = "file:///x"': SHARED_RULE,
        'url = "memory://x"': SHARED_RULE,
        'url = "valkey://"': SHARED_RULE,
        'url = "valkey://host:x"': SHARED_RULE,
        'url = "valkey://host:70000"': SHARED_RULE,
        'url = "valkey://host/name"': SHARED_RULE,
        'url = "valkey://host/0?x=1"': SHARED_RULE,
        'url = "valkey://me@host"': SHARED_RULE,
        'url = "unix:///"': SHARED_RULE,
        'url = "unix:///x?name=1"': SHARED_RULE,
        'url = "host:6379"': SHARED_RULE,
    },
    LIMITS: {
        "colour = 1": "unknown key; known names: requests_per_second, burst, concurrency",
        "requests_per_second = 0": f"{NUMBER}, not 0",
        "requests_per_second = -1.5": f"{NUMBER}, not -1.5",
        "requests_per_second = inf": f"{NUMBER}, not inf",
        "requests_per_second = nan": f"{NUMBER}, not nan",
        "requests_per_second = true": f"{NUMBER}, not a boolean",
        'requests_per_second = "10"': f"{NUMBER}, not a text",
    },
    CHARACTER: {
        'text = ""': TEXT,
        'file = "gone"': UNREADABLE,
        'file = "blank.txt"': EMPTY,
        'file = "latin.txt"': "the file is not UTF-8 text",
        "txt = 1": 'unknown key; did you mean "text"?',
    },
    PRICES: {
        "input = 0.1": 'must be quoted, so that it stays exact: "0.1"',
        "input = true": 'must be dollars per million tokens in quotes, like "0.10", not a boolean',
        'output = "cheap"': "'cheap' is not an amount of dollars; write it like 5.00",
        'output = "-1"': "-1 is negative; write an amount like 5.00",
        'output = "0.0001"': "0.0001 dollars per million tokens is not a whole number of nano-dollars a token",
        'cached_input = "0.11"': "must not be above the price of input",
        'cashed_input = "1"': 'unknown key; did you mean "cached_input"?',
    },
    ROUTE_OF_LOCAL: {
        "context_tokens = 0": "must be a whole number from 1 to 1,000,000, not 0",
        "context_tokens = 1_000_001": "must be a whole number from 1 to 1,000,000, not 1000001",
        "max_output_tokens = 131_073": "must be a whole number from 1 to 131,072, not 131073",
        "order = -1": "must be a whole number from 0 to 1,000,000,000, not -1",
        "timeouts = 5": "must be a table, not a whole number",
        "timeouts = { connect_s = -1 }": f".connect_s: {NUMBER}, not -1",
        'modle = "x"': 'unknown key; did you mean "model"?',
        'system = "two"': 'must be "one" or "each"',
        'reasoning = "hide"': 'must be "pass" or "drop"',
        'omit = "seed"': 'must be a list of field names, like ["seed"]',
        'omit = ["messages"]': 'cannot change "messages"',
        'pass = "top_k"': 'must be a list of field names, like ["top_k"]',
        'pass = ["top k"]': 'must be a list of field names, like ["top_k"]',
        'pass = ["messages"]': 'cannot name "messages": the service decides about it',
        'pass = ["top_k", "n_predict"]': 'cannot name "n_predict": the service decides about it',
        'pass = ["store"]': 'cannot name "store": the service decides about it',
        'fields = { model = "x" }': 'cannot change "model"',
        "fields = { x = nan }": "must be values that JSON has: no dates, times, nan or inf",
        "fields = 1": "must be a table, not a whole number",
        'by = "contract"': 'it needs retention = "zero" in the same route',
    },
    ENDPOINT: {
        'base_url = ""': ADDRESS,
        'base_url = "ftp://acme.example"': ADDRESS,
        'base_url = "acme.example/v1"': ADDRESS,
        'base_url = "https://"': ADDRESS,
        'base_url = "https://acme.example:many/v1"': ADDRESS,
        'base_url = "https://acme.example/ v1"': ADDRESS,
        'base_url = "https://me:s3/cret@acme.example/v1"': ADDRESS,
        'base_url = "https://me:s3cret@acme.example/v1"': NO_SECRETS,
        'base_url = "https://acme.example/v1?key=s3cret"': NO_SECRETS,
        'base_url = "https://acme.example/v1#s3cret"': NO_SECRETS,
        'base_url = "http://acme.example/v1"': "http sends keys and messages unencrypted; use https, or insecure = true",
    },
    PROVIDER: {
        'api_key = "sk-s3cret"': USE_KEY,
        'key = "sk-s3cret"': USE_KEY,
        'token = "sk-s3cret"': USE_KEY,
        'apikey = "sk-s3cret"': 'unknown key; did you mean "api_key_env"?',
        'api_key_env = "sk-s3cret"': VARIABLE,
        'api_key_env = "1ABC"': VARIABLE,
        'api_key_file = "gone"': UNREADABLE,
        'api_key_file = "blank.txt"': EMPTY,
        'api_key_file = "null.txt"': EMPTY,
        'api_key_file = "latin.txt"': "the file is not UTF-8 text",
        'api_key_file = "lines.txt"': "the key must be one line of printable ASCII characters, and nothing else",
        'model_path = "x.gguf"': "there is no file at FOLDER/x.gguf",
        'dialect = "opnai"': 'must be "plain", "vllm", "sglang", "llamacpp", "ollama", "tgi", "openai", "azure", "openrouter", "together", "groq", "mistral", "deepseek", "kimi", "anthropic" or "gemini"; did you mean "openai"?',
        'ca_file = "gone"': UNREADABLE,
        'ca_file = "good.txt"': f"{NO_CERTIFICATE}/good.txt",
        'ca_file = "broken.pem"': f"{NO_CERTIFICATE}/broken.pem",
    },
    EMBEDDED: {
        'dialect = "plain"': 'only for a provider of kind = "openai"',
        'model_path = "gone.gguf"': "there is no file at FOLDER/gone.gguf",
    },
    SEARXNG: {
        'api_key = "s3cret"': "a secret must not be in this file; use api_key_env",
        "timeout_s = 61": "must be a number above 0 and up to 60, not 61",
        "timeout_s = 0": "must be a number above 0 and up to 60, not 0",
        "max_results = 0": "must be a whole number from 1 to 20, not 0",
        'allow_networks = ["10.0.0.1/8"]': f'{FIRST} "10.0.0.0/8", or "10.0.0.1" alone?',
    },
    SEARCH: {
        'engine = "searxgn"': f'{ENGINES}; did you mean "searxng"?',
    },
    GROUNDING: {
        "attachements = true": 'unknown key; did you mean "attachments"?',
        'search = "brave"': "must be true, false, or a table with engine, not a text",
        "search = 0": "must be true, false, or a table with engine, not a whole number",
    },
    OBSERVE: {
        'otlp_url = "http://collector:4318/v1/traces"': "must be the address before /v1/traces and /v1/metrics, which are added",
        'otlp_url = "http://a:s3cret@collector"': NO_SECRETS,
        'otlp_url = "collector:4318"': ADDRESS,
        'otlp_url = "http://collector.example.org"': "http sends headers and traces unencrypted; use https, or a collector on a private network",
    },
    RETENTION: {
        "usage_days = 7": "must be a whole number from 32 to 36,500, not 7",
        "audit_event_days = 0": "must be a whole number from 30 to 36,500, not 0",
        "usage_day = 90": 'unknown key; did you mean "usage_days"?',
    },
    GATE: {
        "min_score = 2": "must be a number from 0 to 1, not 2",
        'must_pass = ["A B"]': 'must be a list of tags of a suite, like ["tools", "json"]',
        'suite = "gone"': "there is no file at FOLDER/gone",
    },
    PLATFORM: {
        'secret_key = "s3cret"': "a secret must not be in this file; use the environment",
        "opening_credit = 0.1": 'must be quoted, so that it stays exact: "0.1"',
        'sign_up = "opened"': 'must be "closed", "invite" or "open"; did you mean "open"?',
        "opening_credits_per_hour = 0": "must be a whole number from 1 to 1,000,000, not 0",
    },
    SMTP: {
        'password = "s3cret"': "a secret must not be in this file; use password_env",
        'security = "ssl"': 'must be "starttls", "tls" or "none"',
        "port = 0": "must be a whole number from 1 to 65,535, not 0",
    },
}
# A whole file -> all of its problems.
# fmt: off
WHOLE: list[tuple[str, list[str]]] = [
    (SMTP + '[limits]\nburst = 0\n[server]  # a comment\nprot = 8080\nworkers = "four"\n' + LOCAL_ROUTE + "weight = 0\n" + '[[classes.forte.routes]]\nprovider = "locale"\ntimeouts = { conect_s = 5 }\n[providers.local]\nkind = "embedded"\n', ["line 7: limits.burst: must be a whole number from 1 to 1,000,000,000, not 0", 'line 9: server.prot: unknown key; did you mean "port"?', "line 10: server.workers: must be a whole number from 1 to 64, not a text", "line 13: classes.forte.routes[0].weight: must be a whole number from 1 to 1,000,000,000, not 0", 'line 15: classes.forte.routes[1].provider: no provider has this name; did you mean "local"?', 'line 16: classes.forte.routes[1].timeouts.conect_s: unknown key; did you mean "connect_s"?', f"line 17: providers.local.retention: missing; it {ZERO}"]),
    ("[sever]", ['line 1: sever: unknown key; did you mean "server"?']),
    ("server = 1", ["line 1: server: must be a table, not a whole number"]),
    ("providers = 1", ["line 1: providers: must be a table, not a whole number"]),
    ("providers.acme = 1", ["line 1: providers.acme: must be a table, not a whole number"]),
    ("classes.forte = 1", ["line 1: classes.forte: must be a table, not a whole number"]),
    ('server.prot = 1\n[server2]\n["limits"]\n"brust" = 1', ['line 1: server.prot: unknown key; did you mean "port"?', 'line 2: server2: unknown key; did you mean "server"?', 'line 4: limits.brust: unknown key; did you mean "burst"?']),
    ('# """ in a comment\n[character]\ntext = """\n[server]\nport = 1\n"""\n\n[server]\nport = 70000', [f"line 9: server.port: {PORT}, not 70000"]),
    ("[server]\nport =", ["line 2, column 7: not valid TOML: Invalid value"]),
    ('[payments.stripe]\nsecret_key = "s3cret"', [f"line 1: payments.stripe.secret_key_env: missing; it {VARIABLE}", f"line 1: payments.stripe.webhook_secret_env: missing; it {VARIABLE}", "line 2: payments.stripe.secret_key: a secret must not be in this file; use secret_key_env or webhook_secret_env"]),
    (PROVIDER + 'api_key_env = "KEY"\napi_key_file = "good.txt"\n' + ROUTE, ["line 1: providers.acme: must have api_key_env or api_key_file, not both"]),
    (EMBEDDED.replace('retention = "zero"', "") + LOCAL_ROUTE, [f"line 1: providers.local.retention: missing; it {ZERO}"]),
    (PROVIDER.replace('"zero"', '"Zero"') + ROUTE, [f"line 4: providers.acme.retention: {ZERO}"]),
    (PROVIDER.replace('"zero"', "0") + ROUTE, [f"line 4: providers.acme.retention: {ZERO}"]),
    (EMBEDDED.replace('kind = "embedded"', "") + LOCAL_ROUTE, ['line 1: providers.local.kind: missing; it must be "openai" or "embedded"']),
    (EMBEDDED.replace("embedded", "openia") + LOCAL_ROUTE, ['line 2: providers.local.kind: must be "openai" or "embedded"; did you mean "openai"?']),
    (PROVIDER.replace('base_url = "https://acme.example/v1"', "") + ROUTE, [f"line 1: providers.acme.base_url: missing; it {ADDRESS}"]),
    (PROVIDER, ['classes: no class has a route; add lines like these:\n[[classes.forte.routes]]\nprovider = "acme"\nmodel = "name-of-a-model-there"' ]),
    (ROUTE_OF_LOCAL + "[classes.forte.routes.timeouts]\nidle_s = 0", [f"line 7: classes.forte.routes[0].timeouts.idle_s: {NUMBER}, not 0"]),
    (ROUTE_OF_LOCAL + 'cost_input = "1"\ncost_output = "2"\n[[classes.mezzo.routes]]\nprovider = "local"\ncost_input = "1"\ncost_output = "3"', ["line 8: classes.mezzo.routes[0]: another route gives other costs for local/smollm2-135m-instruct"]),
    (EMBEDDED + ROUTE, ["line 5: classes.forte.routes[0].provider: no provider has this name; known names: local"]),
    (EMBEDDED + "[[classes.forte.routes]]", ["line 4: classes.forte.routes[0].provider: missing; known names: local"]),
    (PROVIDER + ROUTE.replace('model = "acme-large"', ""), ["line 5: classes.forte.routes[0].model: missing; it must be the name of a model at that provider"]),
    (PROVIDER + ROUTE + 'retention = "zero"\nby = "api"', ["line 9: classes.forte.routes[0].by: the API of the provider acme does not enforce zero retention. Use a provider that does, such as the embedded model or OpenRouter, or leave out `by` in the route." ]),
    (PROVIDER.replace("acme.example", "api.openai.com") + ROUTE + "continue = true", ["line 8: classes.forte.routes[0].continue: a provider of the dialect openai cannot continue an answer"]),
    (EMBEDDED + "[classes.forte]\nroutes = []", ["line 5: classes.forte.routes: missing; a class needs at least one [[classes.forte.routes]]"]),
    (EMBEDDED + "[classes.forte]\nroutes = [1]", ["line 5: classes.forte.routes: must be a list of tables"]),
    (EMBEDDED + '[classes.forte.routes]\nprovider = "local"', ["line 4: classes.forte.routes: must be a list of tables: write its header in double brackets"]),
    (ROUTE_OF_LOCAL + '[[classes.forte.candidates]]\nprovider = "local"\nweight = 2', ["line 8: classes.forte.candidates[0].weight: unknown key; known names: provider, model, context_tokens, max_output_tokens, continue, system, reasoning, retention, by, always_send_max_tokens, max_tokens_field, vision, audio, files, omit, pass, fields, timeouts, cost_input, cost_output, cost_cached" ]),
    (ROUTE_OF_LOCAL + '[classes.mezzo.character]\ntext = "Be brief."', ["line 6: classes.mezzo.character: it needs [[classes.mezzo.routes]]: a character belongs to routes"]),
    (ROUTE_OF_LOCAL + '[classes.forte.gate]\nmin_score = 2\nmust_pass = ["A B"]\nsuite = "gone"', ["line 7: classes.forte.gate.min_score: must be a number from 0 to 1, not 2", 'line 8: classes.forte.gate.must_pass: must be a list of tags of a suite, like ["tools", "json"]', "line 9: classes.forte.gate.suite: there is no file at FOLDER/gone"]),
    ("[classes.fort]\n[classes.piano]\n[classes.auto]\n[classes.gpt]", ['line 1: classes.fort: unknown class; did you mean "forte"?', "line 2: classes.piano: this class is reserved and cannot be configured", "line 3: classes.auto: this is not a class: it stands for the class that the account prefers", "line 4: classes.gpt: unknown class; known names: mezzo, forte, fortissimo"]),
    ("[prices.fort]\n[prices.piano]\n[prices.auto]\n[prices.gpt]", ['line 1: prices.fort: unknown class; did you mean "forte"?', "line 2: prices.piano: this class is reserved and cannot be configured", "line 3: prices.auto: this is not a class: it stands for the class that the account prefers", "line 4: prices.gpt: unknown class; known names: mezzo, forte, fortissimo"]),
    ('[character]\ntext = "a"\nfile = "good.txt"', ["line 1: character: must have text or file, not both"]),
    ('[grounding.search]\nindex = "docs.db"\nurl = "http://127.0.0.1:8888"', [f"line 1: grounding.search.engine: missing; it {ENGINES}"]),
    ('[grounding.search]\nengine = "google"\nurl = "http://127.0.0.1:8888"', [f"line 2: grounding.search.engine: {ENGINES}"]),
    ('[grounding.search]\nengine = "local"\nurl = "http://127.0.0.1"', ["line 3: grounding.search.url: the local engine does not use it"]),
    ('[grounding.search]\nengine = "searxng"\nurl = "http://search.example.org"', ["line 3: grounding.search.url: http sends queries unencrypted; use https"]),
    ("[grounding]\nsearch = false\n" + SEARXNG, ["line 3, column 18: not valid TOML: Cannot overwrite a value"]),
    (MAIL, ["platform.base_url: missing; e-mails have links, which begin with it"]),
    (PLATFORM + '[mail]\nhost = "smtp.example.org"', ['line 3: mail.sender: missing; it must be an e-mail address, like "Cadenza <cadenza@example.org>"']),
    (PLATFORM + '[mail]\nhost = "h"\nsender = "nobody"', ['line 5: mail.sender: must be an e-mail address, like "Cadenza <cadenza@example.org>"']),
    ('[payments.stripe]\nsecret_key_env = "STRIPE_KEY"', [f"line 1: payments.stripe.webhook_secret_env: missing; it {VARIABLE}"]),
    (OBSERVE + URL + "sample = 5", ["line 3: observe.sample: must be a number from 0 to 1, not 5"]),
    ("[server]\nport = = 1", ["line 2, column 8: not valid TOML: Invalid value"]),
    (ROUTE_OF_LOCAL + 'cost_input = "1"', ["line 4: classes.forte.routes[0]: cost_input and cost_output belong together: give both or none"]),
    ('[grounding.search]\nengine = "searxng"', ['line 1: grounding.search.url: missing; it must be the address of your SearXNG, like "http://127.0.0.1:8888"']),
    ('[grounding.search]\nengine = "tavily"', ["line 1: grounding.search.api_key_env: missing; it must name the environment variable that has the engine's key" ]),
    ("[grounding.search]\nmax_results = 5", [f"line 1: grounding.search.engine: missing; it {ENGINES}"]),
    ('[grounding.search]\nurl = "http://127.0.0.1:8888"', [f"line 1: grounding.search.engine: missing; it {ENGINES}"]),
    ("[observe]\nsample = 0.5", ['line 1: observe: it needs otlp_url, the address of a collector, like "http://127.0.0.1:4318"']),
    ("[retention]\nsession_days = 3", ["line 1: retention.session_idle_days: must not be above session_days, which is 3"]),
    (SMTP + 'username = "cadenza"', ["line 3: mail: username and password_env belong together: give both or none"]),
]
# fmt: on


def problems(folder: Path, text: str) -> list[str]:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "cadenza.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {}, folder)
    assert not any(secret in problem for problem in caught.value.problems for secret in ("s3cret", "s3/cret"))
    return [problem.replace(str(folder), "FOLDER") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("before", "line", "sentence"),
    [(before, line, sentence) for before, lines in LINES.items() for line, sentence in lines.items()],
    ids=str,
)
def test_a_line_with_a_mistake(tmp_path: Path, before: str, line: str, sentence: str) -> None:
    """It is the one problem, with its line and its key; the sentence says what is allowed and shows no secret."""
    [problem] = problems(tmp_path, f"{before}{line}\n{AFTER.get(before, '')}")
    header = before.strip().splitlines()
    last = next(one for one in reversed(header) if one.startswith("["))
    place = last.strip("[]") + ("[0]" if last.startswith("[[") else "")
    key = f"{place}.{line.partition(' = ')[0]}"
    colon = "" if sentence.startswith(".") else ": "
    assert problem == f"line {len(header) + 1}: {key}{colon}{sentence}"


@pytest.mark.parametrize(("text", "expected"), WHOLE)
def test_a_file_with_mistakes(tmp_path: Path, text: str, expected: list[str]) -> None:
    """All mistakes of a file are reported at once, from top to bottom, and one mistake causes no other."""
    assert problems(tmp_path, text) == expected
