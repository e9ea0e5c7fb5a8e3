"""The configuration: its defaults, the rules of the file, and problems that name the line, the key and the remedy."""

import io
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from cadenza.config import ConfigError, Settings, load_settings
from cadenza.config.checks import SHARED_RULE
from cadenza.config.settings import LimitSettings, ProviderSettings, ServerSettings
from cadenza.core.money import Price
from cadenza.core.records import CLASSES, Route, Timeouts

RETENTION_RULE = 'must be exactly "zero": the service starts only if every provider has zero data retention'
LITERAL_RULE = "a key must not be in this file; name a variable with api_key_env or a file with api_key_file"
KEY_RULE = "the key must be one line of printable ASCII characters, and nothing else"
NUMBER = "a number above 0 and up to 1,000,000,000"
TEXT = "a non-empty string without null characters"
NO_ENVIRONMENT: Mapping[str, str] = {}

ACME = """
[providers.acme]
kind = "openai"
base_url = "https://acme.example/v1"
api_key_env = "ACME_API_KEY"
retention = "zero"
"""
ACME_FILE = ACME.replace('api_key_env = "ACME_API_KEY"', 'api_key_file = "acme.key"')
LOCAL = """
[providers.local]
kind = "embedded"
retention = "zero"
"""
ROUTE = """
[[classes.forte.routes]]
provider = "acme"
model = "acme-large"
"""
LOCAL_ROUTE = """
[[classes.forte.routes]]
provider = "local"
"""
EVERY_KEY = """
[server]
host = "0.0.0.0"
port = 9000
workers = 2
drain_s = 5

[store]
url = "postgresql://user:pw@db.example/cadenza"
region = "eu"

[shared_state]
url = "memory://"

[limits]
requests_per_second = 2
burst = 3
concurrency = 4
revoked_streams = "finish"

[character]
text = "Be brief."

[prices.mezzo]
input = "0.20"
output = 1
cached_input = "0.05"

[providers.acme]
kind = "openai"
base_url = "https://acme.example/v1/"
api_key_env = "ACME_API_KEY"
retention = "zero"
dialect = "openrouter"
api_version = "2024-10-21"
insecure = true

[providers.beta]
kind = "openai"
base_url = "https://beta.example/v1"
api_key_file = "keys/beta.key"
retention = "zero"

[providers.local]
kind = "embedded"
model_path = "models/tiny.q8.gguf"
retention = "zero"

[[classes.forte.routes]]
provider = "acme"
model = "acme-large"
context_tokens = 1_000_000
max_output_tokens = 131_072
order = 1
weight = 3
continue = true
system = "each"
reasoning = "drop"
always_send_max_tokens = true
max_tokens_field = "max_completion_tokens"
omit = ["seed", "temperature"]
pass = ["top_k", "min_p"]
fields = { thinking = { type = "disabled" } }
retention = "zero"
by = "api"
timeouts = { connect_s = 1, first_token_s = 2, idle_s = 3.5, total_s = 4 }

[[classes.forte.routes]]
provider = "local"
"""
PATIENT = Timeouts(first_token_s=300.0)  # of the embedded model


def load(folder: Path, text: str, environ: Mapping[str, str] = NO_ENVIRONMENT) -> Settings:
    (folder / "cadenza.toml").write_text(text)
    return load_settings(None, environ, folder)


def problems(folder: Path, text: str, environ: Mapping[str, str] = NO_ENVIRONMENT) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, environ)
    return caught.value.problems


def write_files(folder: Path) -> None:
    """The files that EVERY_KEY names."""
    for name in ("models/tiny.q8.gguf", "keys/beta.key"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("beta-secret\n")


def test_no_file_means_the_embedded_default(tmp_path: Path) -> None:
    """Without a file every class runs on the embedded model, with the documented defaults and prices."""
    settings = load_settings(None, NO_ENVIRONMENT, tmp_path)
    assert settings.source is None
    assert settings.server == ServerSettings(host="127.0.0.1", port=8080, workers=1, drain_s=30.0)
    assert settings.store.url == f"sqlite:///{tmp_path}/data/cadenza.db"
    assert settings.store.region is None
    assert settings.shared_state.url == "memory://"
    assert settings.limits == LimitSettings(requests_per_second=10.0, burst=20, concurrency=256)
    assert settings.providers == {"local": ProviderSettings(name="local", kind="embedded", retention="zero")}
    assert tuple(settings.classes) == CLASSES
    for class_settings in settings.classes.values():
        assert class_settings.routes == (
            Route("local", "smollm2-135m-instruct", 8192, 4096, timeouts=PATIENT, custom_tools=False),
        )
    assert settings.prices == {
        "mezzo": Price(input_nano=100, output_nano=210, cached_input_nano=20),
        "forte": Price(input_nano=1_070, output_nano=3_450),
        "fortissimo": Price(input_nano=3_450, output_nano=17_250),
    }


def test_file_that_sets_only_the_port_keeps_every_other_default(tmp_path: Path) -> None:
    """A file with neither providers nor classes gets the built-in ones."""
    settings = load(tmp_path, "[server]\nport = 9000\n")
    default = load_settings(None, NO_ENVIRONMENT, tmp_path / "elsewhere")
    assert settings.server == ServerSettings(port=9000)
    assert settings.providers == default.providers
    assert settings.classes == default.classes


def test_every_key_is_read(tmp_path: Path) -> None:
    """A file that sets every key is read key by key, with routes sorted by order."""
    write_files(tmp_path)
    settings = load(tmp_path, EVERY_KEY, {"ACME_API_KEY": "secret"})
    assert settings.source == tmp_path / "cadenza.toml"
    assert settings.server == ServerSettings("0.0.0.0", 9000, 2, 5.0)
    assert settings.store.url == "postgresql://user:pw@db.example/cadenza"
    assert settings.store.region == "eu"
    assert settings.limits == LimitSettings(2.0, 3, 4, "finish")
    assert settings.prices["mezzo"] == Price(200, 1000, 50)
    assert settings.providers["acme"] == ProviderSettings(
        name="acme",
        kind="openai",
        base_url="https://acme.example/v1",
        api_key_env="ACME_API_KEY",
        api_key="secret",
        dialect="openrouter",
        api_version="2024-10-21",
        insecure=True,
    )
    assert settings.providers["beta"].api_key == "beta-secret"
    assert settings.providers["local"].model_path == tmp_path / "models" / "tiny.q8.gguf"
    assert settings.classes["forte"].character == "Be brief."
    assert settings.classes["forte"].routes == (
        Route("local", "tiny.q8", 8192, 4096, timeouts=PATIENT, custom_tools=False),
        Route(
            *("acme", "acme-large", 1_000_000, 131_072, 1, 3, Timeouts(1.0, 2.0, 3.5, 4.0)),
            continues=True,
            system="each",
            reasoning="drop",
            always_send_max_tokens=True,
            max_tokens_field="max_completion_tokens",
            omit=("seed", "temperature"),
            drops=("seed", "temperature"),
            passes=("top_k", "min_p"),
            fields='{"thinking": {"type": "disabled"}}',
            retention_by="api",
        ),
    )


def test_config_option_wins_over_the_environment_and_the_folder(tmp_path: Path) -> None:
    """--config comes first, then $CADENZA_CONFIG, then cadenza.toml in the working folder."""
    for port, name in enumerate(("cadenza.toml", "env.toml", "option.toml"), start=1):
        (tmp_path / name).write_text(f"[server]\nport = {port}\n")
    environ = {"CADENZA_CONFIG": str(tmp_path / "env.toml")}
    assert load_settings("option.toml", environ, tmp_path).server.port == 3
    assert load_settings(None, environ, tmp_path).server.port == 2
    assert load_settings(None, {"CADENZA_CONFIG": ""}, tmp_path).server.port == 1


@pytest.mark.parametrize(
    ("option", "environ", "named_by"),
    [("gone.toml", {}, "named by --config"), (None, {"CADENZA_CONFIG": "gone.toml"}, "named by $CADENZA_CONFIG")],
)
def test_missing_file_says_how_it_was_named(
    tmp_path: Path, option: str | None, environ: dict[str, str], named_by: str
) -> None:
    """A named file that does not exist stops the start, with its path and with what named it."""
    with pytest.raises(ConfigError) as caught:
        load_settings(option, environ, tmp_path)
    assert caught.value.path == tmp_path / "gone.toml"
    assert caught.value.problems == [f"the file {named_by} cannot be read: No such file or directory"]


def test_unreadable_file_in_the_folder_is_not_ignored(tmp_path: Path) -> None:
    """A cadenza.toml that exists but cannot be read is an error; the default is not used in its place."""
    (tmp_path / "cadenza.toml").mkdir()
    with pytest.raises(ConfigError, match="found in the working folder cannot be read: Is a directory"):
        load_settings(None, NO_ENVIRONMENT, tmp_path)


def test_file_that_is_not_utf8(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are a problem, not a crash."""
    (tmp_path / "cadenza.toml").write_bytes(b'[server]\nhost = "\xff"\n')
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_settings(None, NO_ENVIRONMENT, tmp_path)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("[server]\nport = = 1\n", "line 2, column 8: not valid TOML: "),
        ("[server]\nport =", "line 2, column 7: not valid TOML: "),
        ("[server]\nport = " + "9" * 5000, "not valid TOML: "),
    ],
)
def test_syntax_error_is_one_problem_with_line_and_column(tmp_path: Path, text: str, start: str) -> None:
    """A file that is not valid TOML gives one problem with its place, where the parser tells it."""
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(start)


def test_several_mistakes_are_reported_at_once_in_file_order(tmp_path: Path) -> None:
    """Every mistake in a file is in the one report, with its line, from top to bottom."""
    text = """\
[limits]
burst = 0

[server]  # a header with a comment
prot = 8080
workers = "four"

[[classes.forte.routes]]
provider = "local"
weight = 0

[[classes.forte.routes]]
provider = "locale"
timeouts = { conect_s = 5 }

[providers.local]
kind = "embedded"
"""
    assert problems(tmp_path, text) == [
        "line 2: limits.burst: must be a whole number from 1 to 1,000,000,000, not 0",
        'line 5: server.prot: unknown key; did you mean "port"?',
        "line 6: server.workers: must be a whole number from 1 to 64, not a string",
        "line 10: classes.forte.routes[0].weight: must be a whole number from 1 to 1,000,000,000, not 0",
        'line 13: classes.forte.routes[1].provider: no provider has this name; did you mean "local"?',
        'line 14: classes.forte.routes[1].timeouts.conect_s: unknown key; did you mean "connect_s"?',
        f"line 16: providers.local.retention: missing; it {RETENTION_RULE}",
    ]


def test_report_names_the_file_and_gives_a_line_to_each_problem(tmp_path: Path) -> None:
    """str() of the error is the file's name, then a line for each problem."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "[server]\nport = -1\nhost = 3\n")
    assert str(caught.value).splitlines() == [
        f"{tmp_path / 'cadenza.toml'}: 2 problems",
        "  line 2: server.port: must be a whole number from 0 to 65,535, not -1",
        f"  line 3: server.host: must be {TEXT}, not a whole number",
    ]


def test_lines_of_a_long_string_are_not_taken_for_keys(tmp_path: Path) -> None:
    """Text that looks like TOML inside a string of several lines does not change the line numbers."""
    text = '# """ in a comment\n[character]\ntext = """\n[server]\nport = 1\n"""\n\n[server]\nport = 70000\n'
    (problem,) = problems(tmp_path, text)
    assert problem.startswith("line 9: server.port: ")


def test_dotted_and_quoted_keys_have_lines(tmp_path: Path) -> None:
    """The line is found for a dotted key and for a quoted one."""
    assert problems(tmp_path, 'server.prot = 1\n[server2]\n["limits"]\n"brust" = 1\n') == [
        'line 1: server.prot: unknown key; did you mean "port"?',
        'line 2: server2: unknown key; did you mean "server"?',
        'line 4: limits.brust: unknown key; did you mean "burst"?',
    ]


def test_sub_table_of_a_route_belongs_to_the_last_route(tmp_path: Path) -> None:
    """A [classes.….routes.timeouts] header is reported at the route above it."""
    text = LOCAL + LOCAL_ROUTE + LOCAL_ROUTE + "[classes.forte.routes.timeouts]\nidle_s = 0\n"
    line = len(text.splitlines())
    assert problems(tmp_path, text) == [
        f"line {line}: classes.forte.routes[1].timeouts.idle_s: must be {NUMBER}, not 0"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[sever]", 'line 1: sever: unknown key; did you mean "server"?'),
        ("[server]\nPORT = 1", 'line 2: server.PORT: unknown key; did you mean "port"?'),
        (
            "[limits]\ncolour = 1",
            "line 2: limits.colour: unknown key; known names: requests_per_second, burst, concurrency, revoked_streams",
        ),
        ("server = 1", "line 1: server: must be a table, not a whole number"),
        ("providers = 1", "line 1: providers: must be a table, not a whole number"),
        ("providers.acme = 1", "line 1: providers.acme: must be a table, not a whole number"),
        ("classes.forte = 1", "line 1: classes.forte: must be a table, not a whole number"),
        ("[server]\nport = true", "line 2: server.port: must be a whole number from 0 to 65,535, not a boolean"),
        (
            "[server]\nport = 80.0",
            "line 2: server.port: must be a whole number from 0 to 65,535, not a number with decimals",
        ),
        ("[server]\nport = 65536", "line 2: server.port: must be a whole number from 0 to 65,535, not 65536"),
        (
            "[server]\nport = 2026-01-01",
            "line 2: server.port: must be a whole number from 0 to 65,535, not a date or a time",
        ),
        ("[server]\nworkers = 0", "line 2: server.workers: must be a whole number from 1 to 64, not 0"),
        ("[server]\nworkers = 65", "line 2: server.workers: must be a whole number from 1 to 64, not 65"),
        ('[server]\nhost = " "', f"line 2: server.host: must be {TEXT}"),
        ('[server]\nhost = "a\\u0000"', f"line 2: server.host: must be {TEXT}"),
        (
            '[limits]\nrevoked_streams = "stop"',
            'line 2: limits.revoked_streams: must be "end" or "finish"',
        ),
        ("[store]\nregion = []", f"line 2: store.region: must be {TEXT}, not an array"),
    ],
)
def test_unknown_key_wrong_type_or_range(tmp_path: Path, text: str, problem: str) -> None:
    """An unknown key, a wrong type or a value out of range is a problem that says what the value must be."""
    assert problems(tmp_path, text) == [problem]


@pytest.mark.parametrize("rate", ["0", "-1.5", "inf", "nan", "true", '"10"'])
def test_rate_must_be_a_positive_number(tmp_path: Path, rate: str) -> None:
    """A rate that is not a number above zero is refused."""
    (problem,) = problems(tmp_path, f"[limits]\nrequests_per_second = {rate}")
    assert problem.startswith(f"line 2: limits.requests_per_second: must be {NUMBER}")


@pytest.mark.parametrize("key", [line.partition(" = ")[0] for line in EVERY_KEY.splitlines() if " = " in line])
def test_a_value_that_fits_no_key_is_reported_under_its_key(tmp_path: Path, key: str) -> None:
    """A wrong value of any key gives a report that names the key, never a crash."""
    write_files(tmp_path)
    for value in ("[7]", "1979-05-27", "07:32:00", "nan", "{ x = 07:32:00 }", "-1", '""', '"\\u0000"'):
        lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in EVERY_KEY.splitlines()]
        found = problems(tmp_path, "\n".join(lines))
        assert any(f".{key}: " in problem or f".{key}.x: " in problem for problem in found), value


@pytest.mark.parametrize("section", ["prices", "classes"])
def test_class_names(tmp_path: Path, section: str) -> None:
    """Only mezzo, forte and fortissimo can be configured; piano and auto are refused with the reason."""
    text = f"[{section}.fort]\n[{section}.piano]\n[{section}.auto]\n[{section}.gpt]\n"
    assert problems(tmp_path, text) == [
        f'line 1: {section}.fort: unknown class; did you mean "forte"?',
        f"line 2: {section}.piano: this class is reserved and cannot be configured",
        f"line 3: {section}.auto: this is not a class: it stands for the class that the account prefers",
        f"line 4: {section}.gpt: unknown class; known names: mezzo, forte, fortissimo",
    ]


@pytest.mark.parametrize(
    ("line", "price"),
    [
        ('output = "0.50"', Price(100, 500, 20)),
        ('input = "0.02"', Price(20, 210, 20)),
        ('input = "0.01"', Price(10, 210, None)),
    ],
)
def test_partial_price_keeps_the_other_defaults(tmp_path: Path, line: str, price: Price) -> None:
    """A price that is not given keeps its default, except a cached price above the new price of input."""
    assert load(tmp_path, f"[prices.mezzo]\n{line}").prices["mezzo"] == price


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("input = 0.1", 'input: must be quoted, so that it stays exact: "0.1"'),
        ("input = true", f"input: must be {TEXT}, not a boolean"),
        ('output = "cheap"', "output: 'cheap' is not an amount of dollars; write it like 5.00"),
        ('output = "-1"', "output: -1 is negative; write an amount like 5.00"),
        (
            'output = "0.0001"',
            "output: 0.0001 dollars per million tokens is not a whole number of nano-dollars a token",
        ),
        ('cached_input = "0.11"', "cached_input: must not be above the price of input"),
        ('cashed_input = "1"', 'cashed_input: unknown key; did you mean "cached_input"?'),
    ],
)
def test_wrong_price(tmp_path: Path, line: str, problem: str) -> None:
    """A price that is inexact, not an amount, or above what a hold covers is refused with the reason."""
    assert problems(tmp_path, f"[prices.mezzo]\n{line}") == [f"line 2: prices.mezzo.{problem}"]


@pytest.mark.parametrize(
    ("lines", "dialect"),
    [
        ('base_url = "https://api.openai.com/v1"', "openai"),
        ('base_url = "https://openrouter.ai/api/v1"', "openrouter"),
        ('base_url = "https://eu.openrouter.ai/api/v1"', "openrouter"),
        ('base_url = "https://notopenrouter.ai/api/v1"', "plain"),
        ('base_url = "https://acme.openai.azure.com/openai/v1"', "azure"),
        ('base_url = "https://api.mistral.ai/v1"', "mistral"),
        ('base_url = "https://api.groq.com/openai/v1"', "groq"),
        ('base_url = "https://api.deepseek.com"', "deepseek"),
        ('base_url = "https://api.moonshot.ai/v1"', "kimi"),
        ('base_url = "https://api.anthropic.com/v1"', "anthropic"),
        ('base_url = "https://generativelanguage.googleapis.com/v1beta/openai"', "gemini"),
        ('base_url = "https://api.together.ai/v1"', "together"),
        ('base_url = "http://127.0.0.1:9/v1"', "plain"),
        ('base_url = "https://api.openai.com/v1"\ndialect = "plain"', "plain"),
    ],
)
def test_dialect_follows_the_host_unless_it_is_given(tmp_path: Path, lines: str, dialect: str) -> None:
    """Without a dialect the host of base_url decides; a dialect in the file wins."""
    settings = load(tmp_path, ACME.replace('base_url = "https://acme.example/v1"', lines) + ROUTE)
    assert settings.providers["acme"].dialect == dialect


@pytest.mark.parametrize(
    ("host", "is_refused"),
    [
        ("api.acme.example", True),
        ("8.8.8.8", True),
        ("[2001:4860::8888]", True),
        ("localhost:8000", False),
        ("127.0.0.1", False),
        ("[::1]:8000", False),
        ("10.1.2.3", False),
        ("192.168.0.7:11434", False),
        ("[fd00::1]", False),
        ("vllm:8000", False),
        ("models.internal", False),
        ("box.local", False),
        ("evil.local.example", True),
    ],
)
def test_plain_http_to_a_public_host_needs_a_word(tmp_path: Path, host: str, is_refused: bool) -> None:
    """Keys and messages go unencrypted over a public network only if the operator says `insecure = true`."""
    text = ACME.replace("https://acme.example/v1", f"http://{host}/v1")
    if is_refused:
        (problem,) = problems(tmp_path, text + ROUTE)
        assert "base_url: http sends keys and messages unencrypted" in problem
        text = text.replace('retention = "zero"', 'retention = "zero"\ninsecure = true')
    assert load(tmp_path, text + ROUTE).providers["acme"].base_url == f"http://{host}/v1"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "base_url: missing; it must be an address"),
        ('base_url = "ftp://acme.example"', "base_url: must be an http or https address"),
        ('base_url = "acme.example/v1"', "base_url: must be an http or https address"),
        ('base_url = "https://"', "base_url: must be an http or https address"),
        ('base_url = "https://acme.example:many/v1"', "base_url: must be an http or https address"),
        ('base_url = "https://acme.example/ v1"', "base_url: must be an http or https address"),
        ('base_url = "https://me:s3/cret@acme.example/v1"', "base_url: must be an http or https address"),
        ('base_url = "https://me:s3cret@acme.example/v1"', "base_url: must not have a user name, password"),
        ('base_url = "https://acme.example/v1?key=s3cret"', "base_url: must not have a user name, password, query"),
        ('base_url = "https://acme.example/v1#s3cret"', "base_url: must not have a user name, password, query"),
    ],
)
def test_wrong_base_url(tmp_path: Path, line: str, sentence: str) -> None:
    """An address that is missing, not a web address or carries a secret is refused and not repeated."""
    (problem,) = problems(tmp_path, ACME.replace('base_url = "https://acme.example/v1"', line) + ROUTE)
    assert f"providers.acme.{sentence}" in problem
    assert "s3" not in problem


@pytest.mark.parametrize("key", ["api_key", "key", "token"])
def test_literal_key_is_refused(tmp_path: Path, key: str) -> None:
    """A key in the file is refused, with the advice where to put it, and not repeated."""
    text = ACME.strip() + f'\n{key} = "sk-s3cret"\n' + ROUTE
    assert problems(tmp_path, text) == [f"line 6: providers.acme.{key}: {LITERAL_RULE}"]


@pytest.mark.parametrize("value", ["sk-s3cret", "gsk_s3cretAbC", "s3cret", "A B", "1ABC", "A" * 101])
def test_api_key_env_that_is_not_a_variable_name_is_refused(tmp_path: Path, value: str) -> None:
    """A value that could be a key, in place of a variable's name, is refused and not repeated."""
    (problem,) = problems(tmp_path, ACME.replace("ACME_API_KEY", value) + ROUTE)
    assert "providers.acme.api_key_env: must be the name of an environment variable" in problem
    assert value not in problem


@pytest.mark.parametrize("line", ["", 'retention = "Zero"', 'retention = "none"', "retention = 0"])
def test_provider_without_zero_retention_stops_the_start(tmp_path: Path, line: str) -> None:
    """A provider needs retention = "zero", word by word, and the problem says why."""
    (problem,) = problems(tmp_path, ACME.replace('retention = "zero"', line) + ROUTE)
    assert "providers.acme.retention: " in problem
    assert problem.endswith(RETENTION_RULE)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", 'kind: missing; it must be "openai" or "embedded"'),
        ('kind = "openia"', 'kind: must be "openai" or "embedded"; did you mean "openai"?'),
    ],
)
def test_kind_must_be_known(tmp_path: Path, line: str, sentence: str) -> None:
    """A missing or unknown kind is one problem and causes no others."""
    (problem,) = problems(tmp_path, LOCAL.replace('kind = "embedded"', line) + LOCAL_ROUTE)
    assert problem.endswith(f"providers.local.{sentence}")


def test_keys_of_another_kind_are_refused(tmp_path: Path) -> None:
    """A key that only the other kind of provider has is refused with the name of that kind."""
    text = ACME.strip() + '\nmodel_path = "x.gguf"\n' + LOCAL.strip() + '\ndialect = "plain"\n' + ROUTE
    assert problems(tmp_path, text) == [
        'line 6: providers.acme.model_path: only for a provider of kind = "embedded"',
        'line 10: providers.local.dialect: only for a provider of kind = "openai"',
    ]


def test_a_refused_key_is_never_suggested(tmp_path: Path) -> None:
    """The nearest name that is offered is always one that may be used."""
    assert problems(tmp_path, ACME.strip() + '\napikey = "sk-s3cret"\n' + ROUTE) == [
        'line 6: providers.acme.apikey: unknown key; did you mean "api_key_env"?'
    ]


def test_model_path_must_be_a_file(tmp_path: Path) -> None:
    """A model_path without a file is a problem at the start, not at the first request."""
    text = LOCAL.strip() + '\nmodel_path = "gone.gguf"\n' + LOCAL_ROUTE
    assert problems(tmp_path, text) == [
        f"line 4: providers.local.model_path: there is no file at {tmp_path / 'gone.gguf'}"
    ]


def test_route_defaults(tmp_path: Path) -> None:
    """A route without limits gets those of its provider's kind, and partial timeouts keep the others."""
    text = ACME + LOCAL + ROUTE + "timeouts = { idle_s = 7 }\n" + LOCAL_ROUTE
    assert load(tmp_path, text).classes["forte"].routes == (
        Route("acme", "acme-large", 128_000, 16_384, 0, 1, Timeouts(idle_s=7.0)),
        Route("local", "smollm2-135m-instruct", 8_192, 4_096, timeouts=PATIENT, custom_tools=False),
    )


def test_routes_are_sorted_by_order_and_stay_in_file_order_within_one(tmp_path: Path) -> None:
    """Routes stand in the order in which they are tried, and only the classes that the file names exist."""
    names_and_orders = [("late", 2), ("first", 0), ("second", 0), ("middle", 1)]
    routes = (ROUTE.replace("acme-large", name) + f"order = {order}\n" for name, order in names_and_orders)
    settings = load(tmp_path, ACME + "".join(routes))
    assert [route.model for route in settings.classes["forte"].routes] == ["first", "second", "middle", "late"]
    assert list(settings.classes) == ["forte"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("context_tokens = 0", "context_tokens: must be a whole number from 1 to 1,000,000, not 0"),
        ("context_tokens = 1_000_001", "context_tokens: must be a whole number from 1 to 1,000,000, not 1000001"),
        ("max_output_tokens = 131_073", "max_output_tokens: must be a whole number from 1 to 131,072, not 131073"),
        ("order = -1", "order: must be a whole number from 0 to 1,000,000,000, not -1"),
        ("timeouts = 5", "timeouts: must be a table, not a whole number"),
        ("timeouts = { connect_s = -1 }", f"timeouts.connect_s: must be {NUMBER}, not -1"),
        ('modle = "x"', 'modle: unknown key; did you mean "model"?'),
        ('system = "two"', 'system: must be "one" or "each"'),
        ('reasoning = "hide"', 'reasoning: must be "pass" or "drop"'),
        ('omit = "seed"', 'omit: must be an array of field names, like ["seed"]'),
        ('omit = ["messages"]', 'omit: cannot change "messages"'),
        ('pass = "top_k"', 'pass: must be an array of field names, like ["top_k"]'),
        ('pass = ["top k"]', 'pass: must be an array of field names, like ["top_k"]'),
        ('pass = ["messages"]', 'pass: cannot name "messages": the service decides about it'),
        ('pass = ["top_k", "n_predict"]', 'pass: cannot name "n_predict": the service decides about it'),
        ('pass = ["store"]', 'pass: cannot name "store": the service decides about it'),
        ('fields = { model = "x" }', 'fields: cannot change "model"'),
        ("fields = { x = nan }", "fields: must be values that JSON has: no dates, times, nan or inf"),
    ],
)
def test_wrong_route(tmp_path: Path, line: str, sentence: str) -> None:
    """A value of a route must be in its range, and the problem counts routes from 0."""
    text = LOCAL.strip() + LOCAL_ROUTE + line
    assert problems(tmp_path, text) == [f"line 6: classes.forte.routes[0].{sentence}"]


BY_API = '\nretention = "zero"\nby = "api"\n'


@pytest.mark.parametrize("host", ["api.openai.com", "api.anthropic.com", "10.0.0.5:8000"])
def test_a_provider_that_does_not_enforce_zero_retention(tmp_path: Path, host: str) -> None:
    """`by = "api"` is refused on a route whose provider only promises zero retention, even with `store: false`."""
    provider = ACME.replace("acme.example", host)
    (problem,) = problems(tmp_path, provider + ROUTE + BY_API)
    assert "routes[0].by: the API of the provider acme does not enforce zero retention. Use a provider that" in problem
    assert load(tmp_path, provider + ROUTE + BY_API.replace("api", "contract")).classes["forte"].routes


def test_providers_that_enforce_zero_retention(tmp_path: Path) -> None:
    """OpenRouter does by its API, and the embedded model by being local: their routes may demand it."""
    text = ACME.replace("acme.example", "openrouter.ai") + LOCAL + ROUTE + BY_API + LOCAL_ROUTE + BY_API
    assert [route.retention_by for route in load(tmp_path, text).classes["forte"].routes] == ["api", "api"]


def test_a_demand_names_what_it_is_about(tmp_path: Path) -> None:
    """`by` alone is refused: it belongs to `retention`."""
    (problem,) = problems(tmp_path, ACME + ROUTE + '\nby = "contract"\n')
    assert "routes[0].by: it needs retention" in problem


def test_a_provider_that_cannot_continue_an_answer(tmp_path: Path) -> None:
    """`continue = true` is refused on a route whose provider speaks a dialect that cannot continue an answer."""
    provider = ACME.replace("https://acme.example/v1", "https://api.openai.com/v1")
    (problem,) = problems(tmp_path, provider + ROUTE + "\ncontinue = true")
    assert "routes[0].continue: a provider of the dialect openai cannot continue an answer" in problem


def test_route_on_an_openai_provider_needs_a_model(tmp_path: Path) -> None:
    """A route to an OpenAI-compatible endpoint must name a model there."""
    (problem,) = problems(tmp_path, ACME + ROUTE.replace('model = "acme-large"', ""))
    assert "classes.forte.routes[0].model: missing" in problem


def test_route_needs_a_provider_that_is_defined(tmp_path: Path) -> None:
    """A route without a provider, or with a name like no defined one, lists the defined providers."""
    text = LOCAL.strip() + '\n[[classes.mezzo.routes]]\n[[classes.forte.routes]]\nprovider = "zzz"\n'
    assert problems(tmp_path, text) == [
        "line 4: classes.mezzo.routes[0].provider: missing; known names: local",
        "line 6: classes.forte.routes[0].provider: no provider has this name; known names: local",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[classes.forte]\nroutes = []", "missing; a class needs at least one [[classes.forte.routes]]"),
        ("[classes.forte]\nroutes = [1]", "must be an array of tables"),
        (
            '[classes.forte.routes]\nprovider = "local"',
            "must be an array of tables: write its header in double brackets",
        ),
    ],
)
def test_class_needs_an_array_of_routes(tmp_path: Path, text: str, sentence: str) -> None:
    """An empty list of routes, or a single-bracket header, is a problem that says what to write."""
    (problem,) = problems(tmp_path, LOCAL + text)
    assert problem.endswith(f"classes.forte.routes: {sentence}")


def test_settings_of_a_class_without_routes_keep_the_built_in_default(tmp_path: Path) -> None:
    """A gate or a watch alone pins nothing: every class stays on the embedded model, and the class has its gate."""
    settings = load(tmp_path, "[classes.forte.gate]\nmin_score = 0.5\n[classes.forte.watch]\nevery_hours = 24")
    forte, mezzo = settings.classes["forte"], settings.classes["mezzo"]
    assert (forte.gate.min_score, forte.watch.every_hours) == (0.5, 24)
    assert forte.routes == mezzo.routes == load(tmp_path, "").classes["forte"].routes
    assert forte.pinned_at is None


def test_settings_of_a_class_without_routes_leave_them_to_the_store(tmp_path: Path) -> None:
    """Beside providers, such a class is not one that the config decides about. A character would never be used."""
    settings = load(tmp_path, LOCAL + LOCAL_ROUTE + "\n[classes.mezzo.gate]\nmin_score = 0.5")
    assert settings.classes["mezzo"].gate.min_score == 0.5
    assert list(settings.configured_classes()) == ["forte"]
    (problem,) = problems(tmp_path, LOCAL + LOCAL_ROUTE + '\n[classes.mezzo.character]\ntext = "Be brief."')
    assert problem.endswith("classes.mezzo.character: it needs [[classes.mezzo.routes]]: a character belongs to routes")


def test_providers_without_classes_show_the_lines_to_add(tmp_path: Path) -> None:
    """The problem of a file with providers but no classes shows lines to add, and those lines load."""
    (problem,) = problems(tmp_path, ACME)
    _, *lines = problem.splitlines()
    assert lines[:2] == ["[[classes.forte.routes]]", 'provider = "acme"']
    settings = load(tmp_path, ACME + "\n".join(lines))
    assert settings.classes["forte"].routes[0].provider == "acme"


def test_default_character_depends_on_the_routes(tmp_path: Path) -> None:
    """A class with only embedded routes gets one plain sentence; any other class gets one that names Cadenza."""
    mixed = load(tmp_path, ACME + LOCAL + ROUTE + LOCAL_ROUTE + LOCAL_ROUTE.replace("forte", "mezzo")).classes
    assert mixed["mezzo"].character == "You are a helpful AI assistant."
    assert mixed["forte"].character.startswith("You are Cadenza, ")
    assert len(mixed["forte"].character.split()) <= 45


@pytest.mark.parametrize("route", [ROUTE, LOCAL_ROUTE])
def test_configured_character_replaces_either_default(tmp_path: Path, route: str) -> None:
    """The general character holds for every class; a class's own replaces it for that class alone."""
    general, own = '[character]\ntext = "General."\n', '[classes.forte.character]\ntext = " Own. "\n'
    classes = load(tmp_path, general + ACME + LOCAL + route + route.replace("forte", "mezzo") + own).classes
    assert classes["forte"].character == "Own."
    assert classes["mezzo"].character == "General."


def test_character_file_is_relative_to_the_config_file(tmp_path: Path) -> None:
    """A character file, general or of a class, is found beside the config file from any folder, and is trimmed."""
    (tmp_path / "general.md").write_text("Speak like a pianist.\n")
    (tmp_path / "own.md").write_text("\nOwn.\n\n")
    config = tmp_path / "c.toml"
    routes = LOCAL_ROUTE + LOCAL_ROUTE.replace("forte", "mezzo")
    files = '[character]\nfile = "general.md"\n[classes.forte.character]\nfile = "own.md"\n'
    config.write_text(LOCAL + routes + files)
    settings = load_settings(str(config), NO_ENVIRONMENT, Path("/"))
    assert settings.classes["mezzo"].character == "Speak like a pianist."
    assert settings.classes["forte"].character == "Own."


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('text = ""', f"line 2: character.text: must be {TEXT}"),
        ('file = "gone.md"', "line 2: character.file: the file cannot be read: No such file or directory"),
        ('file = "blank.md"', "line 2: character.file: the file is empty or contains null characters"),
        ('file = "latin.md"', "line 2: character.file: the file is not UTF-8 text"),
        ('text = "a"\nfile = "good.md"', "line 1: character: must have text or file, not both"),
        ("txt = 1", 'line 2: character.txt: unknown key; did you mean "text"?'),
    ],
)
def test_wrong_character(tmp_path: Path, lines: str, problem: str) -> None:
    """A character that is empty, missing, unreadable or given twice is a problem."""
    (tmp_path / "good.md").write_text("Good.")
    (tmp_path / "blank.md").write_text(" \n")
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    assert problems(tmp_path, f"[character]\n{lines}") == [problem]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("sqlite:///./data/a.db", "data/a.db"),
        ("sqlite:///a.db", "a.db"),
        ("sqlite:///../a.db", "../a.db"),
        ("sqlite:////srv/c.db", "/srv/c.db"),
    ],
)
def test_sqlite_path_is_relative_to_the_config_file(tmp_path: Path, given: str, expected: str) -> None:
    """A relative SQLite path starts at the config file's folder, not at the working folder; an absolute one stays."""
    config = tmp_path / "c.toml"
    config.write_text(f'[store]\nurl = "{given}"\n')
    settings = load_settings(str(config), NO_ENVIRONMENT, Path("/"))
    assert settings.store.url == f"sqlite:///{(tmp_path / expected).resolve()}"
    assert settings.store.url.startswith("sqlite:////")


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:s3cret@host/db",
        "postgres://host/db",
        "postgresql://",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///data/",
        "sqlite:///a.db?mode=ro",
        "data/cadenza.db",
    ],
)
def test_other_stores_are_refused(tmp_path: Path, url: str) -> None:
    """Only an SQLite file or a Postgres address is a store, and the problem does not repeat the address."""
    assert problems(tmp_path, f'[store]\nurl = "{url}"') == [
        'line 2: store.url: must be "sqlite:///path/of/a/file.db" or "postgresql://user@host/database"'
    ]


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "valkey://host",
        "valkey://host:6379/0",
        "redis://me:w0rd@[::1]:7000",
        "rediss://:w0rd@host/3",
        "valkeys://host/",
        "unix:///run/valkey.sock",
        "unix://me:w0rd@/run/valkey.sock?db=2",
    ],
)
def test_shared_state_may_be_in_memory_or_valkey(tmp_path: Path, url: str) -> None:
    """With a host or a Unix socket, with user and password or without, and with a database or without."""
    assert load(tmp_path, f'[shared_state]\nurl = "{url}"').shared_state.url == url


@pytest.mark.parametrize(
    "url",
    [
        "file:///x",
        "memory://x",
        "valkey://",
        "valkey://host:x",
        "valkey://host:70000",
        "valkey://host/name",
        "valkey://host/0?x=1",
        "valkey://me@host",
        "unix:///",
        "unix:///x?name=1",
        "host:6379",
    ],
)
def test_other_shared_states_are_refused(tmp_path: Path, url: str) -> None:
    """Anything else is a problem, which does not repeat the address."""
    assert problems(tmp_path, f'[shared_state]\nurl = "{url}"') == [f"line 2: shared_state.url: {SHARED_RULE}"]


@pytest.mark.parametrize("environ", [{}, {"ACME_API_KEY": ""}, {"ACME_API_KEY": " \n"}])
def test_missing_key_is_reported_but_does_not_stop_loading(tmp_path: Path, environ: dict[str, str]) -> None:
    """A provider whose variable is unset or empty loads without a key, and missing_secrets names it."""
    settings = load(tmp_path, ACME + ROUTE, environ)
    assert settings.providers["acme"].api_key is None
    assert settings.missing_secrets == (
        "providers.acme: the environment variable ACME_API_KEY is unset or empty; put the provider's key into it.",
    )


def test_key_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    """A provider's key is the value of its variable, or the text of its file, without blanks around it."""
    for provider, environ in ((ACME, {"ACME_API_KEY": "s3cret\n"}), (ACME_FILE, NO_ENVIRONMENT)):
        (tmp_path / "acme.key").write_text(" s3cret\r\n")
        settings = load(tmp_path, provider + ROUTE, environ)
        assert settings.providers["acme"].api_key == "s3cret"
        assert settings.missing_secrets == ()


def test_provider_may_have_no_key(tmp_path: Path) -> None:
    """Without api_key_env and api_key_file there is no key, and nothing is missing."""
    settings = load(tmp_path, ACME.replace('api_key_env = "ACME_API_KEY"', "") + ROUTE)
    assert settings.providers["acme"].api_key is None
    assert settings.missing_secrets == ()


@pytest.mark.parametrize("key", ["s3cret\r\nx-evil: 1", "s3\ncret", "s3\x07cret", "s3\x7fcret", "s3crét"])
def test_key_that_cannot_be_sent_in_a_header_is_refused(tmp_path: Path, key: str) -> None:
    """A key with a line break, a control character or one outside ASCII is refused and not repeated."""
    (tmp_path / "acme.key").write_text(key)
    assert problems(tmp_path, ACME + ROUTE, {"ACME_API_KEY": key}) == [
        f"line 5: providers.acme.api_key_env: {KEY_RULE}"
    ]
    assert problems(tmp_path, ACME_FILE + ROUTE) == [f"line 5: providers.acme.api_key_file: {KEY_RULE}"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "the file cannot be read: No such file or directory"),
        (b" \n", "the file is empty or contains null characters"),
        (b"s3cret\0", "the file is empty or contains null characters"),
        (b"\xffs3cret", "the file is not UTF-8 text"),
    ],
)
def test_wrong_key_file(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    """A key file that is missing, empty or not text is a problem that shows nothing of it."""
    if content is not None:
        (tmp_path / "acme.key").write_bytes(content)
    assert problems(tmp_path, ACME_FILE + ROUTE) == [f"line 5: providers.acme.api_key_file: {sentence}"]


def test_key_is_given_once(tmp_path: Path) -> None:
    """A provider with both api_key_env and api_key_file is a problem."""
    (tmp_path / "acme.key").write_text("s3cret")
    text = ACME.strip() + '\napi_key_file = "acme.key"\n' + ROUTE
    assert problems(tmp_path, text) == ["line 1: providers.acme: must have api_key_env or api_key_file, not both"]


def test_no_secret_shows_in_any_form_of_the_settings(tmp_path: Path) -> None:
    """Neither repr, str nor rich shows a provider's key, or a password of a proxy, the store or Valkey."""
    text = '[store]\nurl = "postgresql://me:pa?ss@w0rd@db/x?password=w0rd"\n' + ACME + ROUTE
    text = '[shared_state]\nurl = "valkey://me:w0rd@valkey.test"\n' + text
    environ = {"ACME_API_KEY": "s3cret", "HTTPS_PROXY": "http://me:w0rd@proxy.test:3128"}
    settings = load(tmp_path, text, environ)
    console = Console(file=io.StringIO(), width=200)
    console.print(settings)
    assert isinstance(console.file, io.StringIO)
    for shown in (repr(settings), str(settings), console.file.getvalue()):
        assert "acme.example" in shown
        assert "***" in shown
        assert not any(secret in shown for secret in ("s3cret", "pa?ss", "w0rd"))
