"""JSON and YAML of others: limits on size, nesting and aliases, and fields checked by name and type."""

import json
import math

import pytest

from reflectdrive_ros.documents import (
    DEEPEST,
    FILE_NAME,
    SHA256,
    DocumentError,
    array,
    check,
    flag,
    json_of,
    maybe,
    named,
    number,
    read_json,
    read_yaml,
    text,
    whole,
    yaml_of,
)


def refusal(how, *given):
    with pytest.raises(DocumentError) as fault:
        how(*given)
    said = str(fault.value)
    assert "\n" not in said
    assert len(said) < 500
    return said


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", [json_of, yaml_of])
def test_nesting_is_read_up_to_the_limit(reader):
    found = reader("[" * DEEPEST + "]" * DEEPEST)
    for _ in range(DEEPEST - 1):
        (found,) = found
    assert found == []
    for depth in (DEEPEST + 1, 500, 100_000):
        assert refusal(reader, "[" * depth + "]" * depth) == f"nests deeper than {DEEPEST} levels"
    assert "nests deeper" in refusal(reader, '{"a": ' * 100 + "1" + "}" * 100)


@pytest.mark.timeout(10)
def test_a_yaml_file_of_aliases_is_refused_before_it_grows():
    """Nine aliases of nine aliases, ten times: 9^10 entries if they were written out."""
    lines = ["a0: &a0 [x, x]"] + [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 10)]
    assert refusal(yaml_of, "\n".join(lines)) == "is not YAML: an alias is not allowed here in line 2"
    assert "an alias is not allowed" in refusal(yaml_of, "a: &a {b: 1}\nc: {<<: *a}")
    assert "an alias is not allowed" in refusal(yaml_of, "a: &a [*a]")
    assert yaml_of("a: &a 1") == {"a": 1}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("digits", ["1" * 100_000, "1" + ":1" * 100_000, "0x" + "f" * 100_000, "1." + "0" * 100_000])
def test_a_number_of_a_hundred_thousand_digits_is_refused(digits):
    assert "a number has more than 1000 characters" in refusal(yaml_of, f"a: {digits}")
    assert yaml_of(f"a: '{digits}'") == {"a": digits}


@pytest.mark.parametrize(
    "content", ["!!int ''", "!!float ''", "!!bool x", "!!timestamp x", "!!set [a]", "!!omap {a: b}", "? [1]\n: 2", "\0"]
)
def test_yaml_that_no_constructor_takes_is_one_sentence(content):
    assert refusal(yaml_of, content).startswith("is not YAML: ")


def test_what_is_no_json_is_one_sentence():
    assert refusal(json_of, b"{") == (
        "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )
    assert refusal(json_of, b"") == "is not JSON: Expecting value: line 1 column 1 (char 0)"
    assert refusal(json_of, b"\xff{}").startswith("is not UTF-8 text: ")
    assert refusal(json_of, "9" * 5000).startswith("is not JSON: ")


@pytest.mark.parametrize("reader", [read_json, read_yaml])
def test_files_are_read_up_to_a_limit(tmp_path, reader):
    file = tmp_path / "some"
    file.write_text('{"a": [1, 2.5, null, true, "ä"]}')
    assert reader(file) == {"a": [1, 2.5, None, True, "ä"]}
    assert reader(file, file.stat().st_size) == reader(file)
    with pytest.raises(OSError, match="larger than the limit of 3 bytes"):
        reader(file, 3)


# --- checking --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (whole(1, 5), [1, 5], [0, 6, 2.0, True, "3", None, [], 10**400]),
        (number(0.0, 2.0), [0, 2, 1.5], [-0.1, 2.1, math.nan, math.inf, True, "1", None, 10**400]),
        (number(), [-1e300, 10**20], [math.nan, math.inf, -math.inf, 10**400]),
        (text(), ["", "a\nb", "ä"], ["a\0b", "\ud800", "a" * 5000, 3, None, b"a"]),
        (flag, [True, False], [0, 1, "true", None]),
        (array(whole(0, 9), 1, 2), [[1], [1, 2]], [[], [1, 2, 3], [10], "12", {"0": 1}, None]),
        (named(flag), [{}, {"a": True}], [[], {"a": 1}, None]),
        (maybe(flag), [None, True], [0, "x"]),
        (SHA256, ["0" * 64, "aB" * 32], ["0" * 63, "0" * 65, "g" * 64, "0" * 64 + "\n", 5]),
        (FILE_NAME, ["a.tar", "..a", "a b"], ["", ".", "..", "a/b", "/a", "../a", "a\\b", "a\0", "\udc80", "a" * 256]),
        ({"a": flag}, [{"a": True}, {"a": True, "more": 3}], [{}, {"a": 3}, [], None, "a"]),
    ],
)
def test_a_kind_takes_what_it_says_and_nothing_else(kind, good, bad):
    for value in good:
        check(value, kind)
    for value in bad:
        refusal(check, value, kind)


def test_a_message_names_the_field_by_its_whole_path():
    kind = {"graphs": named({"files": array({"bytes": whole(1, 9)}), "note": maybe(text())})}
    assert refusal(check, {}, kind) == "has no graphs"
    assert refusal(check, [], kind) == "holds [], expected an object"
    assert refusal(check, {"graphs": {"step": {}}}, kind) == "has no graphs.step.files"
    wrong = {"graphs": {"step": {"files": [{"bytes": 3}, {"bytes": "x"}]}}}
    assert refusal(check, wrong, kind) == "has graphs.step.files[1].bytes = 'x', expected a whole number from 1 to 9"
    wrong = {"graphs": {"step": {"files": [], "note": 7}}}
    assert refusal(check, wrong, kind) == "has graphs.step.note = 7, expected text"
    assert refusal(check, {"graphs": {"a": 3}}, kind) == "has graphs.a = 3, expected an object"
    assert refusal(check, [1, 2], array(flag, 3, 3), "ego") == "has 2 entries in ego, expected 3"


def test_a_message_stays_short_whatever_the_value():
    refusal(check, {"a": ["x" * 10_000] * 10_000}, {"a": whole(0, 1)})
    refusal(check, {"a": 10**4000}, {"a": whole(0, 1)})
    refusal(check, {"k" * 10_000: 3}, named(flag))
    refusal(check, json.loads("[" * 200 + "]" * 200), {"a": flag})
