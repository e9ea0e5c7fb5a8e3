"""The configuration of grounding."""

from collections.abc import Mapping
from pathlib import Path

from cadenza.config import Settings, load_settings

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
