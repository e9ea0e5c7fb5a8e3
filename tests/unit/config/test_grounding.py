"""The configuration of grounding."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cadenza.config import ConfigError, Settings, load_settings

SEARXNG = '[grounding.search]\nengine = "searxng"\nurl = "http://127.0.0.1:8888"\n'
BRAVE = '[grounding.search]\nengine = "brave"\napi_key_env = "BRAVE_KEY"\n'
SECRETS = {"BRAVE_KEY": "brave-secret"}


def load(folder: Path, text: str, environ: Mapping[str, str] = SECRETS) -> Settings:
    (folder / "cadenza.toml").write_text(text)
    return load_settings(None, environ, folder)


def test_defaults(tmp_path: Path) -> None:
    """Files are read, notes are used, and the local engine searches once its index exists."""
    given = load(tmp_path, "").grounding
    assert (given.attachments, given.memory) == (True, True)
    assert (given.search.engine, given.search.index) == ("local", tmp_path / "data/index.db")


def test_everything_given(tmp_path: Path) -> None:
    """The index is relative to the file, and networks have their one form."""
    text = (
        f"[grounding]\nattachments = false\nmemory = false\n{SEARXNG}"
        'max_results = 3\ntimeout_s = 2.5\nindex = "docs.db"\nallow_networks = ["10.1.0.0/16"]\n'
    )
    given = load(tmp_path, text).grounding
    search = given.search
    assert (given.attachments, given.memory, search.engine, search.url) == (
        False,
        False,
        "searxng",
        "http://127.0.0.1:8888",
    )
    assert (search.max_results, search.timeout_s, search.index) == (3, 2.5, tmp_path / "docs.db")
    assert search.allow_networks == ("10.1.0.0/16",)


def test_a_hosted_engine_has_an_address_and_a_key(tmp_path: Path) -> None:
    """The key comes from the environment, no repr shows it, a missing one is told, and a proxy is used."""
    environ = SECRETS | {"HTTPS_PROXY": "http://proxy.example:3128"}
    settings = load(tmp_path, BRAVE, environ)
    search = settings.grounding.search
    assert (search.url, search.api_key) == ("https://api.search.brave.com", "brave-secret")
    assert search.proxy == "http://proxy.example:3128"
    assert "brave-secret" not in repr(settings)
    assert settings.missing_secrets == ()
    [missing] = load(tmp_path, BRAVE, {}).missing_secrets
    assert "BRAVE_KEY" in missing


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[grounding.search]\nengine = "google"\n', 'must be "searxng", "brave", "tavily" or "local"'),
        ('[grounding.search]\nengine = "searxgn"\n', 'did you mean "searxng"?'),
        ('[grounding.search]\nengine = "searxng"\nurl = "127.0.0.1:8888"\n', 'like "http://127.0.0.1:8888"'),
        (SEARXNG + "timeout_s = 61\n", "must be a number above 0 and up to 60, not 61"),
        (SEARXNG + "timeout_s = 0\n", "must be a number above 0 and up to 60, not 0"),
        ('[grounding.search]\nengine = "searxng"\n', "grounding.search.url: missing"),
        ('[grounding.search]\nengine = "tavily"\n', "grounding.search.api_key_env: missing"),
        ("[grounding.search]\nmax_results = 5\n", "grounding.search.engine: missing"),
        ('[grounding.search]\nengine = "local"\nurl = "http://127.0.0.1"\n', "the local engine does not use it"),
        ('[grounding.search]\nengine = "searxng"\nurl = "http://search.example.org"\n', "use https"),
        (SEARXNG + 'api_key = "x"\n', "a key must not be in this file"),
        (SEARXNG + "max_results = 0\n", "from 1 to 20"),
        (SEARXNG + 'allow_networks = ["10.0.0.1/8"]\n', 'did you mean "10.0.0.0/8", or "10.0.0.1" alone?'),
        (SEARXNG + 'allow_networks = ["intranet"]\n', "must be an array of addresses and networks"),
        (
            '[grounding]\nsearch = "brave"\n',
            "grounding.search: must be true, false, or a table with an engine, not a s",
        ),
        ("[grounding]\nsearch = 0\n", "grounding.search: must be true, false, or a table with an engine, not a whole"),
        (f"[grounding]\nsearch = false\n{SEARXNG}", "line 3"),
        ("[grounding]\nattachements = true\n", 'did you mean "attachments"?'),
    ],
)
def test_mistakes(tmp_path: Path, text: str, problem: str) -> None:
    """A mistake stops the start with a sentence that says what to do."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert problem in str(caught.value)


@pytest.mark.parametrize("index", ["", 'index = "docs.db"\n'])
@pytest.mark.parametrize("engine", ["", 'engine = "google"\n'])
def test_an_address_without_an_engine_is_one_mistake(tmp_path: Path, engine: str, index: str) -> None:
    """Only the engine is asked for: nothing is said about a local engine that nobody chose."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f'[grounding.search]\n{engine}{index}url = "http://127.0.0.1:8888"\n')
    [problem] = caught.value.problems
    assert "grounding.search.engine: " in problem
    assert problem.endswith('must be "searxng", "brave", "tavily" or "local"')


def test_an_empty_section_is_the_local_engine(tmp_path: Path) -> None:
    """As if there were none."""
    assert load(tmp_path, "[grounding.search]\n").grounding == load(tmp_path, "").grounding


def test_search_is_turned_off(tmp_path: Path) -> None:
    """With `search = false` there is no engine; `cadenza index` still has its file."""
    given = load(tmp_path, "[grounding]\nsearch = false\n").grounding
    assert (given.search.engine, given.search.index) == ("off", tmp_path / "data/index.db")
    assert (given.attachments, given.memory) == (True, True)


def test_search_that_is_on_without_an_engine_is_the_local_one(tmp_path: Path) -> None:
    """`search = true` is the same as no setting."""
    assert load(tmp_path, "[grounding]\nsearch = true\n").grounding == load(tmp_path, "").grounding


def test_routes_take_what_the_file_says(tmp_path: Path) -> None:
    """A route is marked for images, audio and files; by default it takes none of them."""
    text = (
        '[providers.local]\nkind = "embedded"\nretention = "zero"\n'
        '[[classes.forte.routes]]\nprovider = "local"\nvision = true\naudio = true\nfiles = true\n'
        '[[classes.mezzo.routes]]\nprovider = "local"\n'
    )
    classes = load(tmp_path, text).classes
    [able], [plain] = classes["forte"].routes, classes["mezzo"].routes
    assert (able.vision, able.audio, able.files) == (True, True, True)
    assert (plain.vision, plain.audio, plain.files) == (False, False, False)
