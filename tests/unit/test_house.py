"""Rules of this repository that no linter knows: claims of tests, tests that stay outside, and sizes."""

import ast
import functools
import gc
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cadenza"
TESTS = ROOT / "tests"
LINES_MAX = 600
FUNCTION_LINES_MAX = 70
ATTRIBUTES_MAX = 16
FLAGS_MAX = 3
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}  # public in spite of their names

# file:class -> attributes set in __init__
MANY_ATTRIBUTES = {"src/cadenza/observe/metrics.py:Metrics": 33}  # one for each metric

# file -> how many private attributes it uses
READS_PRIVATE = {"tests/workers.py": 1}  # pytest's folder of temporary files, for all workers

# file -> the parsers of queries that it uses, and for what
READS_QUERIES = {
    "src/cadenza/core/query.py": {"urllib.parse.parse_qsl"},  # the query of a request
    "src/cadenza/parts/site/visit.py": {"urllib.parse.parse_qs", "url"},  # the body of a form; the host of the site
    "src/cadenza/parts/valkey/contents.py": {"urllib.parse.parse_qsl"},  # addresses in the config
    "src/cadenza/parts/valkey/connection.py": {"urllib.parse.parse_qs"},
    "src/cadenza/parts/postgres/connection.py": {"urllib.parse.parse_qs"},
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Nodes = list[ast.AST]


@functools.cache
def parsed(folder: Path) -> list[tuple[str, Nodes]]:
    """All nodes of each file, for all tests of this file."""
    gc.disable()  # with the collector, which finds nothing here, it takes three times as long
    try:
        return [
            (str(path.relative_to(ROOT)), [*ast.walk(ast.parse(path.read_text()))])
            for path in sorted(folder.rglob("*.py"))
        ]
    finally:
        gc.freeze()
        gc.enable()


def functions(nodes: Nodes) -> Iterator[Function]:
    return (node for node in nodes if isinstance(node, Function))


def states_its_claim(test: Function) -> bool:
    docstring = ast.get_docstring(test, clean=False)
    return docstring is not None and bool(docstring.strip()) and "\n" not in docstring


def imported_from(nodes: Nodes) -> dict[str, str]:
    """The imported names of a file, with the package that each comes from."""
    found = dict[str, str]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: (node.module or "").partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.asname or alias.name).partition(".")[0]: alias.name for alias in node.names}
    return found


def imported_modules(nodes: Nodes) -> set[str]:
    """The modules that a file imports, by their full names; a name that is imported from a package may be one too."""
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def patches(nodes: Nodes) -> int:
    """How often `monkeypatch.setattr` has a target that is not plainly another library's."""
    calls = (node for node in nodes if isinstance(node, ast.Call) and node.args)
    named = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "setattr"]
    packages = imported_from(nodes) if named else {}

    def is_ours(target: ast.expr) -> bool:
        if isinstance(target, ast.Constant):
            return str(target.value).startswith("cadenza.")
        if isinstance(target, ast.Name) and target.id == "loop":  # asyncio's
            return False
        return not isinstance(target, ast.Name) or packages.get(target.id, "cadenza") == "cadenza"

    return sum(is_ours(call.args[0]) for call in named)


def private_reads(nodes: Nodes) -> int:
    """How often a private attribute of something other than `self`, `cls` or `os` (`os._exit`) is used."""
    attributes = (node for node in nodes if isinstance(node, ast.Attribute))
    hidden = (node for node in attributes if node.attr.startswith("_") and not node.attr.startswith("__"))
    private = (node for node in hidden if node.attr not in NAMED_TUPLE)
    return sum(not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", "os"}) for node in private)


def private_names(nodes: Nodes) -> list[str]:
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
    ours = (node for node in imports if (node.module or "").partition(".")[0] == "cadenza")
    return sorted(alias.name for node in ours for alias in node.names if alias.name.startswith("_"))


def unsafe_reads(nodes: Nodes) -> set[str]:
    """The ways by which a file reads a cookie or a query without our limits: those of Starlette and of Python."""
    attributes = (node for node in nodes if isinstance(node, ast.Attribute))
    of_requests = {"cookies", "query_params", "url"}
    read = {
        node.attr for node in attributes if node.attr in of_requests and ast.unparse(node.value).endswith("request")
    }
    return read | imported_modules(nodes) & {"http.cookies", "urllib.parse.parse_qs", "urllib.parse.parse_qsl"}


def own_attributes(class_: ast.ClassDef) -> set[str]:
    """The names that `__init__` sets on self."""
    init = next((node for node in class_.body if isinstance(node, Function) and node.name == "__init__"), None)
    stores = (node for node in ast.walk(init or ast.Module([], [])) if isinstance(node, ast.Attribute))
    return {
        node.attr
        for node in stores
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def classes_of_the_source() -> Iterator[tuple[str, set[str]]]:
    for name, nodes in parsed(SOURCE):
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                yield f"{name}:{node.name}", own_attributes(node)


def beyond(found: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """What is above its allowance."""
    return {name: count for name, count in found.items() if count > allowed.get(name, 0)}


def test_every_test_states_its_claim_in_one_line() -> None:
    """Every test function has a docstring of one line."""
    tests = [(name, test) for name, nodes in parsed(TESTS) if "/test_" in name for test in functions(nodes)]
    silent = [
        f"{name}:{test.lineno} {test.name}"
        for name, test in tests
        if test.name.startswith("test") and not states_its_claim(test)
    ]
    assert silent == []


def test_no_test_patches_our_code() -> None:
    """No test replaces our functions, constants or attributes by monkeypatch."""
    assert beyond({name: patches(nodes) for name, nodes in parsed(TESTS)}, {}) == {}


def test_no_test_reads_private_attributes() -> None:
    """No test uses a private attribute of another object."""
    assert beyond({name: private_reads(nodes) for name, nodes in parsed(TESTS)}, READS_PRIVATE) == {}


def test_no_test_imports_a_private_name() -> None:
    """No test imports a name of ours that begins with an underscore."""
    assert beyond({name: len(private_names(nodes)) for name, nodes in parsed(TESTS)}, {}) == {}


def test_each_test_runs_in_one_target() -> None:
    """The targets choose by markers, no file is left out of all of them, and CI runs all but those for a release."""
    target = re.compile(r"^(test[a-z-]*):.*\n\t@\$\(PYTEST\) -m (.*) \$\(ARGS\)$", re.MULTILINE)
    assert target.findall((ROOT / "Makefile").read_text()) == [
        ("test", '"not slow and not release"'),
        ("test-slow", '"slow and not release"'),
        ("test-release", "release"),
    ]
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if not line.startswith("#")]
    run = re.findall(r"\bmake ([a-z-]+)", "\n".join(commands))
    assert run == ["setup", "check", "simulate", "test-core", "test-pythons", "test"]
    names = ((name, node.id) for name, nodes in parsed(TESTS) for node in nodes if isinstance(node, ast.Name))
    assert [name for name, used in names if used in {"collect_ignore", "collect_ignore_glob"}] == []


def test_a_marked_test_says_why() -> None:
    """Every mark `slow`, `release` or `parts` has a reason."""

    def is_mark(node: ast.AST) -> bool:
        is_named = isinstance(node, ast.Attribute) and node.attr in {"slow", "release", "parts"}
        return is_named and ast.unparse(node).startswith("pytest.mark.")

    nodes = [node for _, nodes in parsed(TESTS) for node in nodes]
    reasons = [call.keywords for call in nodes if isinstance(call, ast.Call) and is_mark(call.func)]
    assert [keywords[0].arg for keywords in reasons if keywords] == ["reason"] * sum(map(is_mark, nodes))


def test_cookies_and_queries_are_read_in_one_place() -> None:
    """Only `read_cookie` reads cookies, and only `read_query` queries: other readers take seconds for some heads."""
    found = {name: unsafe_reads(nodes) for name, nodes in parsed(SOURCE)}
    assert {name: reads for name, reads in found.items() if reads - READS_QUERIES.get(name, set())} == {}
    templates = {path.name: path.read_text() for path in (SOURCE / "parts" / "site" / "templates").rglob("*.html")}
    assert [name for name, text in templates.items() if re.search(r"request\.(cookies|query_params|url)", text)] == []


def test_source_files_are_short() -> None:
    """No file of the source has more than 600 lines."""
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}


def test_functions_are_short() -> None:
    """No function of the source has more than 70 lines."""
    lengths = {
        f"{name}:{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for name, nodes in parsed(SOURCE)
        for function in functions(nodes)
    }
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


def test_classes_have_few_attributes() -> None:
    """No class of the source sets more than 16 attributes in its __init__."""
    counts = {name: len(attributes) for name, attributes in classes_of_the_source()}
    assert beyond({name: count for name, count in counts.items() if count > ATTRIBUTES_MAX}, MANY_ATTRIBUTES) == {}


def test_classes_have_few_flags() -> None:
    """No class of the source sets more than 3 flags in its __init__: more of them are states of an enum."""
    flags = {
        name: sum(attribute.lstrip("_").startswith(("is_", "has_")) for attribute in attributes)
        for name, attributes in classes_of_the_source()
    }
    assert beyond({name: count for name, count in flags.items() if count > FLAGS_MAX}, {}) == {}


def test_a_class_name_has_one_meaning() -> None:
    """No two classes of the source have the same name."""
    places = dict[str, list[str]]()
    for name, nodes in parsed(SOURCE):
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def _outside_of_circles(imports: dict[str, set[str]]) -> list[str]:
    """The modules that import none of the others, or that none of the others imports."""
    imported = {name for names in imports.values() for name in names}
    return [module for module, names in imports.items() if module not in imported or not names & imports.keys()]


def test_there_are_no_circles_of_files() -> None:
    """No module of the source imports itself by way of others."""
    modules = {
        name.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", "."): nodes
        for name, nodes in parsed(SOURCE)
    }
    imports = {module: imported_modules(nodes) & modules.keys() - {module} for module, nodes in modules.items()}
    while free := _outside_of_circles(imports):
        for module in free:
            del imports[module]
    assert sorted(imports) == []


def test_brief_work_changes_no_key() -> None:
    """Cached keys stay valid over it: before you add a file here, see that its work changes nothing of a FoundKey."""
    files = {
        name.removeprefix("src/cadenza/")
        for name, nodes in parsed(SOURCE)
        for node in nodes
        if isinstance(node, ast.keyword) and node.arg == "is_brief"
    }
    ledger = {"ledger/committer.py", "ledger/marks.py", "ledger/sweeps.py"}
    tables = {"store/tables/attempts.py", "store/tables/request_details.py"}
    last_used = {"store/tables/keys.py"}  # when a key was last used, and nothing else of it
    assert files == {*ledger, *tables, *last_used, "fleet/presence.py", "store/store.py"}
