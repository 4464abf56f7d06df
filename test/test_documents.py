"""JSON and YAML of others: limits on size, nesting and aliases, and fields checked by name and type."""

import io
import json
import math
import zipfile

import numpy as np
import pytest

from reflectdrive_ros.infra import documents
from reflectdrive_ros.infra.documents import (
    DEEPEST,
    FILE_NAME,
    SHA256,
    DocumentError,
    array,
    check_fields,
    choice,
    fixed,
    flag,
    maybe,
    named,
    number,
    parse_arrays,
    parse_json,
    parse_yaml,
    read_arrays,
    read_json,
    read_yaml,
    text,
    whole,
)


def refusal(how, *arguments):
    with pytest.raises(DocumentError) as fault:
        how(*arguments)
    message = str(fault.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", [parse_json, parse_yaml])
def test_nesting_is_read_up_to_the_limit(reader):
    document = reader("[" * DEEPEST + "]" * DEEPEST)
    for _ in range(DEEPEST - 1):
        (document,) = document
    assert document == []
    for depth in (DEEPEST + 1, 500, 100_000):
        assert refusal(reader, "[" * depth + "]" * depth) == f"nests deeper than {DEEPEST} levels"
    assert "nests deeper" in refusal(reader, '{"a": ' * 100 + "1" + "}" * 100)


@pytest.mark.timeout(10)
def test_a_yaml_file_of_aliases_is_refused_before_it_grows():
    """Nine aliases of nine aliases, ten times: 9^10 entries if they were written out."""
    lines = ["a0: &a0 [x, x]"] + [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 10)]
    assert refusal(parse_yaml, "\n".join(lines)) == "is not YAML: an alias is not allowed here in line 2"
    assert "an alias is not allowed" in refusal(parse_yaml, "a: &a {b: 1}\nc: {<<: *a}")
    assert "an alias is not allowed" in refusal(parse_yaml, "a: &a [*a]")
    assert parse_yaml("a: &a 1") == {"a": 1}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("digits", ["1" * 100_000, "1" + ":1" * 100_000, "0x" + "f" * 100_000, "1." + "0" * 100_000])
def test_a_number_of_a_hundred_thousand_digits_is_refused(digits):
    assert "a number has more than 1000 characters" in refusal(parse_yaml, f"a: {digits}")
    assert parse_yaml(f"a: '{digits}'") == {"a": digits}


@pytest.mark.parametrize(
    "content", ["!!int ''", "!!float ''", "!!bool x", "!!timestamp x", "!!set [a]", "!!omap {a: b}", "? [1]\n: 2", "\0"]
)
def test_yaml_that_no_constructor_takes_is_one_sentence(content):
    assert refusal(parse_yaml, content).startswith("is not YAML: ")


def test_what_is_no_json_is_one_sentence():
    assert refusal(parse_json, b"{") == (
        "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )
    assert refusal(parse_json, b"") == "is not JSON: Expecting value: line 1 column 1 (char 0)"
    assert refusal(parse_json, b"\xff{}").startswith("is not UTF-8 text: ")
    assert refusal(parse_json, "9" * 5000).startswith("is not JSON: ")


def test_files_are_read_up_to_a_limit(tmp_path, monkeypatch):
    file = tmp_path / "some"
    file.write_text('{"a": [1, 2.5, null, true, "ä"]}')
    assert read_json(file) == read_yaml(file) == {"a": [1, 2.5, None, True, "ä"]}
    monkeypatch.setattr(documents, "YAML_BYTES", 3)
    for read in (lambda: read_json(file, 3), lambda: read_yaml(file)):
        with pytest.raises(OSError, match="larger than the limit of 3 bytes"):
            read()


def test_arrays_come_back_by_name(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array("text"), "c": np.zeros(0, bool)}
    for save in (np.savez, np.savez_compressed):
        with (tmp_path / "some.npz").open("wb") as file:
            save(file, **arrays)
        parsed = read_arrays(tmp_path / "some.npz")
        assert sorted(parsed) == ["a", "b", "c"]
        for name, value in arrays.items():
            np.testing.assert_array_equal(parsed[name], value)


@pytest.mark.timeout(10)
def test_arrays_that_are_more_than_they_seem_are_refused(tmp_path):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.zeros(10_000_000, np.uint8))
    assert len(buffer.getvalue()) < 20_000
    message = refusal(parse_arrays, buffer.getvalue(), 1_000_000)
    assert message == "holds 10000128 bytes of arrays, more than the limit of 1000000"

    def packed(array):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("a.npy", array)
        return buffer.getvalue()

    plain = io.BytesIO()
    np.lib.format.write_array(plain, np.arange(3))
    terabyte = plain.getvalue().replace(b"(3,)", b"(99999999999999,)")
    pickled = io.BytesIO()
    np.lib.format.write_array(pickled, np.array([object()]), allow_pickle=True)
    for content in (packed(terabyte), packed(pickled.getvalue()), packed(b"x"), packed(b""), plain.getvalue(), b""):
        assert refusal(parse_arrays, content).startswith("is no NPZ file of arrays: ")


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
        (choice("a", "b"), ["a", "b"], ["c", "", None, [], 3]),
        (fixed(flag, text()), [[True, "a"]], [[], [True], [True, "a", 1], ["a", True], "ab", None]),
        ({"a": flag}, [{"a": True}, {"a": True, "more": 3}], [{}, {"a": 3}, [], None, "a"]),
    ],
)
def test_a_kind_takes_what_it_says_and_nothing_else(kind, good, bad):
    for value in good:
        check_fields(value, kind)
    for value in bad:
        refusal(check_fields, value, kind)


def test_a_message_names_the_field_by_its_whole_path():
    kind = {"graphs": named({"files": array({"bytes": whole(1, 9)}), "note": maybe(text())})}
    assert refusal(check_fields, {}, kind) == "has no graphs"
    assert refusal(check_fields, [], kind) == "holds [], expected an object"
    assert refusal(check_fields, {"graphs": {"step": {}}}, kind) == "has no graphs.step.files"
    wrong = {"graphs": {"step": {"files": [{"bytes": 3}, {"bytes": "x"}]}}}
    assert (
        refusal(check_fields, wrong, kind)
        == "has graphs.step.files[1].bytes = 'x', expected a whole number from 1 to 9"
    )
    wrong = {"graphs": {"step": {"files": [], "note": 7}}}
    assert refusal(check_fields, wrong, kind) == "has graphs.step.note = 7, expected text"
    assert refusal(check_fields, {"graphs": {"a": 3}}, kind) == "has graphs.a = 3, expected an object"
    assert refusal(check_fields, [1, 2], array(flag, 3, 3), "ego") == "has 2 entries in ego, expected 3"


def test_a_message_stays_short_whatever_the_value():
    refusal(check_fields, {"a": ["x" * 10_000] * 10_000}, {"a": whole(0, 1)})
    refusal(check_fields, {"a": 10**4000}, {"a": whole(0, 1)})
    refusal(check_fields, {"k" * 10_000: 3}, named(flag))
    refusal(check_fields, json.loads("[" * 200 + "]" * 200), {"a": flag})
