"""The configuration: its defaults, the rules of the file, and problems that name the line, the key and the remedy."""

import io
from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme
from rich.console import Console

from cadenza.config import ConfigError, Settings, load_settings
from cadenza.config.checks import Secret
from cadenza.config.settings import LimitSettings, ProviderSettings, ServerSettings
from cadenza.core.money import Price
from cadenza.core.records import CLASSES, Route, Timeouts

KEY_RULE = "the key must be one line of printable ASCII characters, and nothing else"
TEXT = "a non-empty text without null characters"
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
    assert settings.providers == {
        "local": ProviderSettings(name="local", kind="embedded", retention="zero", dialect="plain")
    }
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
    assert settings.limits == LimitSettings(2.0, 3, 4)
    assert settings.prices["mezzo"] == Price(200, 1000, 50)
    assert settings.providers["acme"] == ProviderSettings(
        name="acme",
        kind="openai",
        retention="zero",
        base_url="https://acme.example/v1",
        api_key_env="ACME_API_KEY",
        api_key=Secret("secret"),
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


def test_report_names_the_file_and_gives_a_line_to_each_problem(tmp_path: Path) -> None:
    """str() of the error is the file's name, then a line for each problem."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "[server]\nport = -1\nhost = 3\n")
    assert str(caught.value).splitlines() == [
        f"{tmp_path / 'cadenza.toml'}: 2 problems",
        "  line 2: server.port: must be a whole number from 0 to 65,535, not -1",
        f"  line 3: server.host: must be {TEXT}, not a whole number",
    ]


@pytest.mark.parametrize("key", [line.partition(" = ")[0] for line in EVERY_KEY.splitlines() if " = " in line])
def test_a_value_that_fits_no_key_is_reported_under_its_key(tmp_path: Path, key: str) -> None:
    """A wrong value of any key gives a report that names the key, never a crash."""
    write_files(tmp_path)
    for value in ("[7]", "1979-05-27", "07:32:00", "nan", "{ x = 07:32:00 }", "-1", '""', '"\\u0000"'):
        lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in EVERY_KEY.splitlines()]
        found = problems(tmp_path, "\n".join(lines))
        assert any(f".{key}: " in problem or f".{key}.x: " in problem for problem in found), value


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


def test_ca_file_is_relative_to_the_config(tmp_path: Path) -> None:
    """The certificates are read from a file beside the config; what is written around them does not matter."""
    certificate = trustme.CA().cert_pem.bytes().decode()
    (tmp_path / "our-ca.pem").write_text(f"# Häuser & Söhne\n{certificate}")
    settings = load(tmp_path, ACME.strip() + '\nca_file = "our-ca.pem"\n' + ROUTE)
    assert certificate.strip() in (settings.providers["acme"].authorities or "")


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


@pytest.mark.parametrize("environ", [{}, {"ACME_API_KEY": ""}, {"ACME_API_KEY": " \n"}])
def test_missing_key_is_reported_but_does_not_stop_loading(tmp_path: Path, environ: dict[str, str]) -> None:
    """A provider whose variable is unset or empty loads without a key, and missing_secrets names it."""
    settings = load(tmp_path, ACME + ROUTE, environ)
    assert settings.providers["acme"].api_key is None
    words = "the environment variable ACME_API_KEY is unset or empty; put the provider's key into it."
    assert settings.missing_secrets == (f"providers.acme.api_key_env: {words}",)


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
