"""What differs between two versions of a class."""

from cadenza.control.class_diff import FieldChange, RouteChange, compare_versions
from cadenza.core.classes import ClassVersion
from cadenza.core.records import Route, Timeouts

BEFORE = Route("acme", "large", 1000, 100)
SPARE = Route("local", "small", 500, 50, order=1)


def make_version(*routes: Route, character: str = "Be kind.", number: int = 1) -> ClassVersion:
    return ClassVersion(class_id="forte", number=number, routes=routes, character=character)


def test_equal_versions_do_not_differ() -> None:
    """The same routes and character give an empty diff."""
    found = compare_versions(make_version(BEFORE), make_version(BEFORE, number=2))
    assert (found.before, found.after, found.routes, found.character) == (1, 2, (), ())


def test_routes_are_compared_field_by_field() -> None:
    """A route is added, removed or changed; of a new one only the settings beside the defaults are named."""
    changed = Route("acme", "large", 2000, 100, weight=3, timeouts=Timeouts(idle_s=9.0))
    found = compare_versions(make_version(BEFORE, SPARE), make_version(changed, Route("acme", "huge", 1, 2)))
    large, small, huge = found.routes
    assert large == RouteChange(
        "changed",
        "acme/large",
        (
            FieldChange("context_tokens", "1000", "2000"),
            FieldChange("weight", "1", "3"),
            FieldChange("timeouts", "{}", '{"idle_s":9.0}'),
        ),
    )
    assert (small.change, [field.name for field in small.fields]) == (
        "removed",
        ["context_tokens", "max_output_tokens", "order"],
    )
    assert (huge.change, huge.fields[0]) == ("added", FieldChange("context_tokens", None, "1"))


def test_the_character_is_compared_by_lines() -> None:
    """Only the lines that differ, with their surroundings, and no file names."""
    found = compare_versions(make_version(BEFORE, character="a\nb"), make_version(BEFORE, character="a\nc"))
    assert found.character == ("@@ -1,2 +1,2 @@", " a", "-b", "+c")


def test_two_routes_to_one_model_are_two() -> None:
    """A class may name a model twice, with different settings."""
    found = compare_versions(make_version(BEFORE, BEFORE), make_version(BEFORE))
    assert [one.change for one in found.routes] == ["removed"]
