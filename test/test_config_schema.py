"""The schema and the page of the settings: up to date, and the schema says yes exactly where `override` does."""

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.core.config import Config, ConfigError, override_dotted, settings
from reflectdrive_ros.ros import config_schema

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads(config_schema.as_json(Config()))
LEAVES = {leaf.name: leaf for leaf in settings(Config())}
# one setting decides what another may be: no schema of single values can know
TOGETHER = (
    *("cameras.names", "cameras.anchor", "cameras.topics", "cameras.info_topics"),
    *("model.file", "model.sha256", "lights.unknown_after_red", "inputs.max_age_s"),
)
ALONE = sorted(set(LEAVES) - set(TOGETHER))


@pytest.mark.parametrize(
    ("file", "render", "command"),
    [
        ("config/schema.json", config_schema.as_json, "schema"),
        ("docs/parameters.md", config_schema.as_markdown, "page"),
    ],
)
def test_the_made_files_are_up_to_date(file, render, command):
    text = (ROOT / file).read_text()
    assert text == render(Config()), f"run python -m reflectdrive_ros.ros.config_schema {command} > {file}"


def refusals(schema, value, where="$"):
    """What a validator of JSON schema would refuse; knows the words that our schema uses."""
    if "anyOf" in schema:
        every = [refusals(one, value, where) for one in schema["anyOf"]]
        return [] if [] in every else every[0]
    kind = schema["type"]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    right = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "number": number,
        "integer": number and isinstance(value, int),
    }[kind]
    if not right:
        return [f"{where} is no {kind}"]
    errors = []
    if kind == "object":
        for key, inner in value.items():
            is_known = key in schema["properties"]
            errors += refusals(schema["properties"][key], inner, f"{where}.{key}") if is_known else [f"{where}.{key}?"]
    elif kind == "array":
        errors += [f"{where} has too few entries"] if len(value) < schema.get("minItems", 0) else []
        for inner in value:
            errors += refusals(schema["items"], inner, where)
    elif number and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        errors.append(f"{where} is out of range")
    if "enum" in schema and value not in schema["enum"]:
        errors.append(f"{where} is none of {schema['enum']}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        errors.append(f"{where} does not fit")
    return errors


def nested(name, value):
    section, dot, key = name.partition(".")
    return {section: {key: value}} if dot else {section: value}


@pytest.mark.parametrize(
    "file", ["reflectdrive", "demo", "recorded", "reflectdrive2_scene", "drivefine_scene", "cameras_and_map"]
)
def test_the_shipped_files_pass(file):
    assert refusals(SCHEMA, yaml.safe_load((ROOT / "config" / f"{file}.yaml").read_text())) == []


VALUES = st.one_of(
    st.booleans(),
    st.integers(-2000, 2000),
    st.floats(-1e5, 1e5),
    st.text(max_size=8),
    st.sampled_from([word for words in config_schema.CHOICES.values() for word in words]),
    st.sampled_from(["cuda", "cuda:1", "cuda:x", "gpu"]),
    st.lists(st.text(max_size=4), max_size=3),
    st.none(),
)


@given(st.sampled_from(ALONE), VALUES)
def test_the_schema_refuses_what_the_node_refuses_and_nothing_else(name, value):
    if name == "planner" and isinstance(value, (str, list)):
        return  # which planners there are is asked when one is made, see the node's tests
    try:
        override_dotted(Config(), {name: value})
        accepted = True
    except ConfigError:
        accepted = False
    assert (refusals(SCHEMA, nested(name, value)) == []) == accepted, (name, value)


@pytest.mark.parametrize(
    ("planner", "accepted"),
    [
        ("reflexdiffusion", True),
        ("reflexdiffusion+idm_proposals", True),
        (["reflexdiffusion", "idm_proposals"], True),
        (["idm_proposals"], True),
        ("genius", False),
        ("reflexdiffusion+genius", False),
        ("reflexdiffusion+", False),
        (["reflexdiffusion", "genius"], False),
        ([], False),
        (3, False),
    ],
)
def test_the_planner_is_a_name_or_several(planner, accepted):
    assert (refusals(SCHEMA, {"planner": planner}) == []) == accepted


def test_every_setting_of_a_few_words_tells_them():
    for name in sorted(set(ALONE) - {"planner"}):
        if LEAVES[name].kind is str:
            try:
                override_dotted(Config(), {name: "no such word"})
            except ConfigError:
                assert name in {**config_schema.CHOICES, **config_schema.PATTERNS}, f"{name} takes only some words"


@pytest.mark.parametrize("name", ["guard.max_sped_mps", "speed", "guard.max_speed_mps.x"])
def test_an_unknown_name_is_refused(name):
    *path, last = name.split(".")
    value = {last: 1.0}
    for part in reversed(path):
        value = {part: value}
    assert refusals(SCHEMA, value)
