from __future__ import annotations

import pytest

from driver.errors import InvalidValueError
from driver.model.decode import Fields, integer, suggestion, text


def test_paths_are_as_the_author_wrote_them():
    fields = Fields({"a": {"b": [1, "x"]}}, "f.yaml", separator=": ")
    inner = fields.mapping("a")
    assert fields.at("a") == "f.yaml: a"
    assert [path for _, path in inner.items("b")] == ["f.yaml: a.b[0]", "f.yaml: a.b[1]"]


@pytest.mark.parametrize("value", [None, [], "text", 3, {1: 2}])
def test_only_mappings_with_text_keys_have_fields(value):
    with pytest.raises(InvalidValueError, match="a mapping of field names"):
        Fields(value, "f")


def test_what_nobody_asked_for_is_refused():
    fields = Fields({"name": "x", "nmae": "y"}, "f")
    fields.text("name")
    with pytest.raises(InvalidValueError, match=r"f\.nmae: .*did you mean 'name'"):
        fields.done()


def test_defaults_apply_to_missing_fields_only():
    fields = Fields({"here": 3}, "f")
    assert fields.integer("here", 0, 9, 5) == 3
    assert fields.integer("gone", 0, 9, 5) == 5
    with pytest.raises(InvalidValueError, match="required"):
        fields.take("missing")
    fields.done()


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 10])
def test_integers_are_whole_and_within_bounds(value):
    with pytest.raises(InvalidValueError, match="whole number from 0 to 9"):
        integer(value, "f", 0, 9)


@pytest.mark.parametrize("value", ["", "  ", None, [], {}])
def test_text_is_text(value):
    with pytest.raises(InvalidValueError, match=r"must be a string that is not empty$"):
        text(value, "f")


@pytest.mark.parametrize("value", [2330, 9.0])
def test_numbers_that_should_be_text_get_a_hint(value):
    with pytest.raises(InvalidValueError, match="put it in quotes"):
        text(value, "f")


def test_choices():
    fields = Fields({"a": "red", "b": "grey"}, "f")
    assert fields.choice("a", ("red", "green")) == "red"
    with pytest.raises(InvalidValueError, match="one of red, green"):
        fields.choice("b", ("red", "green"))


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("h10", ["l4", "h100"], "did you mean 'h100'? (known: h100, l4)"),
        ("H100", ["l4", "h100"], "did you mean 'h100'? (known: h100, l4)"),
        ("zzz", ["l4", "h100"], "known: h100, l4"),
        ("zzz", [], "known: none"),
        ("a100", ["a10", "a100-40", "a100-80"], "did you mean 'a100-40' or 'a100-80'? (known: a10, a100-40, a100-80)"),
        ("l40", ["l4", "l40", "l40s"], "did you mean 'l40'? (known: l4, l40, l40s)"),
        ("", ["l4"], "known: l4"),
        ("card", [f"card-{n}" for n in "1234"], "did you mean 'card-4'? (known: card-1, card-2, card-3, card-4)"),
        ("word7", [f"word{number}" for number in range(30)], "did you mean 'word7'?"),
    ],
)
def test_suggestions(word, known, expected):
    assert suggestion(word, known) == expected
