"""Settings are strict, and say what to do."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectdrive_ros.core.config import Config, ConfigError, as_yaml, load, override, override_dotted, settings
from reflectdrive_ros.infra import arguments, installing
from reflectdrive_ros.training.settings import DiffusionTrainConfig, RefineTrainConfig, RlTrainConfig, TrainConfig

ROOT = Path(__file__).parents[1]
LEAVES = list(settings(Config()))
NUMBERS = [leaf for leaf in LEAVES if leaf.kind in (int, float)]


def outcome(attempt):
    """What came of an attempt to configure; any exception but ConfigError goes through."""
    try:
        return f"taken: {attempt()}"
    except ConfigError as fault:
        return f"refused: {fault}" if "\n" not in str(fault) else f"in more than one line: {fault}"


def one_sentence(fault):
    text = str(fault.value)
    assert text
    assert "\n" not in text
    assert len(text) < 400, text
    return text


# --- the file that ships ---------------------------------------------------------------------------------------------


def test_the_shipped_file_is_the_defaults_and_loads_to_them():
    file = ROOT / "config/reflectdrive.yaml"
    assert file.read_text() == as_yaml(Config()), (
        "run: python -m reflectdrive_ros.core.config > config/reflectdrive.yaml"
    )
    assert load(file) == Config()


def test_every_section_and_setting_is_described_and_numbers_have_a_range():
    sections = [getattr(Config(), entry.name) for entry in dataclasses.fields(Config)]
    for section in filter(dataclasses.is_dataclass, sections):
        assert f"{type(section).__name__}(" not in type(section).__doc__
    for leaf in LEAVES:
        assert leaf.doc, leaf.name
        if leaf.kind in (int, float):
            assert leaf.low is not None, leaf.name
            assert leaf.low <= leaf.value <= leaf.high, leaf.name


TRAINING = {
    leaf.name: config
    for config in (TrainConfig(), RlTrainConfig(), RefineTrainConfig(), DiffusionTrainConfig())
    for leaf in settings(config)
}
PAGES = {*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"} - {ROOT / "docs/parameters.md"}
TEXT = "\n".join(page.read_text() for page in sorted(PAGES))


@pytest.mark.parametrize("name", [*(leaf.name for leaf in LEAVES), *TRAINING])
def test_every_setting_is_named_on_a_page_that_says_when_to_change_it(name):
    is_named = re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)", TEXT)
    assert is_named, f"{name} is named on docs/parameters.md only: name it, or make it a constant"


def test_the_largest_age_of_an_input_is_an_entry_of_one_setting():
    ages_s = override_dotted(Config(), {"inputs.max_age_s": ["objects=1", "lights=2.5"]}).inputs.max_ages_s
    assert ages_s == {**Config().inputs.max_ages_s, "objects": 1.0, "lights": 2.5}


# --- what is right is taken ------------------------------------------------------------------------------------------


@st.composite
def changes(draw):
    """Dotted names and values that may be set, some numbers among them."""
    chosen = draw(st.lists(st.sampled_from(NUMBERS), unique_by=lambda leaf: leaf.name))
    values = {}
    for leaf in chosen:
        strategy = st.integers(int(leaf.low), int(leaf.high)) if leaf.kind is int else st.floats(leaf.low, leaf.high)
        values[leaf.name] = draw(strategy)
    return values


@given(changes())
def test_what_was_set_is_set_and_nothing_else(values):
    changed = {leaf.name: leaf.value for leaf in settings(override_dotted(Config(), values))}
    assert changed == {leaf.name: leaf.value for leaf in LEAVES} | values


@given(changes())
def test_a_configuration_survives_its_file(tmp_path_factory, values):
    config = override_dotted(Config(), values)
    file = tmp_path_factory.mktemp("config") / "config.yaml"
    file.write_text(as_yaml(config))
    assert load(file) == config


def test_a_whole_number_will_do_where_a_float_is_wanted():
    config = override(Config(), {"guard": {"max_speed_mps": 30}})
    assert config.guard.max_speed_mps == 30.0
    assert isinstance(config.guard.max_speed_mps, float)


@pytest.mark.parametrize("text", ["", "\n", "# only a remark\n", "---\n", "{}\n"])
def test_an_empty_file_is_the_defaults(tmp_path, text):
    (tmp_path / "empty.yaml").write_text(text)
    assert load(tmp_path / "empty.yaml") == Config()


# --- what is wrong is refused ----------------------------------------------------------------------------------------


@given(st.sampled_from(LEAVES), st.data())
def test_an_unknown_key_names_the_near_one(leaf, data):
    *section, key = leaf.name.split(".")
    cut = data.draw(st.integers(1, len(key) - 1))
    wrong = key[:cut] + key[cut + 1 :]
    with pytest.raises(ConfigError) as fault:
        override_dotted(Config(), {".".join([*section, wrong]): leaf.value})
    text = one_sentence(fault)
    assert f"unknown setting '{'.'.join([*section, wrong])}'" in text
    assert "did you mean '" in text or "expected one of" in text


@given(st.sampled_from(NUMBERS), st.data())
def test_a_number_out_of_range_is_refused_with_the_range(leaf, data):
    if leaf.kind is int:
        bad = data.draw(st.one_of(st.integers(max_value=int(leaf.low) - 1), st.integers(min_value=int(leaf.high) + 1)))
    else:
        bad = data.draw(
            st.one_of(st.floats(max_value=leaf.low, exclude_max=True), st.floats(min_value=leaf.high, exclude_min=True))
            | st.just(float("nan"))
        )
    with pytest.raises(ConfigError) as fault:
        override_dotted(Config(), {leaf.name: bad})
    text = one_sentence(fault)
    assert f"setting {leaf.name} is {bad}" in text
    assert f"expected {leaf.low} to {leaf.high}" in text


WRONG = {
    float: ["fast", None, True, [1.0], {"a": 1}],
    int: ["many", None, True, 2.0, [1]],
    bool: ["yes", None, 1, 0.0],
    str: [1, None, True, ["a"]],
    tuple: ["front", None, 1, [1, 2], {"a": 1}, ["front", None]],
}


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name)
def test_a_value_of_the_wrong_type_is_refused_with_the_right_one(leaf):
    for bad in WRONG[leaf.kind] if leaf.name != "planner" else [1, None, True, [1], ["a", ["b"]]]:
        with pytest.raises(ConfigError) as fault:
            override_dotted(Config(), {leaf.name: bad})
        text = one_sentence(fault)
        assert f"setting {leaf.name} is " in text
        assert "expected" in text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"guard.max_sped_mps": 1.0}, "did you mean 'guard.max_speed_mps'?"),
        ({"camera.names": 1.0}, "did you mean 'cameras'?"),
        ({"speed_limit": 1.0}, "did you mean 'speed_limit_mps'?"),
        ({"lights.unknwon": 1.0}, "did you mean 'lights.unknown'?"),
        ({"model.xyzzy": 1}, "expected one of file, sha256"),
        ({"inputs.objects_max_age_s": 1.0}, "write inputs.max_age_s: [objects=1.0]"),
        ({"guard": {}, "guard.max_speed_mps": 1.0}, "'guard' and 'guard.max_speed_mps' are both given"),
        ({"guard.max_speed_mps.value": 1.0}, "setting guard.max_speed_mps is {'value': 1.0} (dict), expected float"),
        ({"guard.": 1.0}, "unknown setting 'guard.'"),
        ({"": 1.0}, "unknown setting ''"),
        ({"guard": 1.0}, "section guard is 1.0, expected settings"),
        *(
            ({"inputs.max_age_s": [entry]}, "expected NAME=SECONDS")
            for entry in ("objects", "objects=", "objects=-1", "objects=nan", "objects=11", "cars=1", "=1", "")
        ),
        ({"cameras.names": ["front", "front"]}, "cameras.names is ['front', 'front'], expected different names"),
        ({"cameras.names": []}, "cameras.names is [], expected different names"),
        ({"cameras.names": ["front", "front left"]}, "cameras.names holds 'front left', expected letters"),
        ({"cameras.anchor": "rear"}, "cameras.anchor is 'rear', expected one of"),
        ({"cameras.topics": ["/a"]}, "cameras.topics has 1 entries for 3 cameras"),
        ({"inputs.route_type": "lanes"}, "inputs.route_type is 'lanes', expected one of path, lanelet"),
        ({"inputs.objects_type": "boxes"}, "inputs.objects_type is 'boxes', expected one of predicted, tracked, none"),
        ({"model.file": "a.onnx", "model.sha256": ""}, "model.file and model.sha256 go together"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_sentence(values, text):
    with pytest.raises(ConfigError) as fault:
        override_dotted(Config(), values)
    assert text in one_sentence(fault)


# --- files that cannot be used ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "does not exist"),
        (b"guard:\n  max_sped_mps: 3", "did you mean 'guard.max_speed_mps'?"),
        (b"guard: [1, 2", "is not YAML: expected ',' or ']', but got '<stream end>' in line 1"),
        (b"planner: x\nspeed_limit_mps: 3\nplanner: y\n", "is not YAML: 'planner' is given twice in line 3"),
        (b"guard:\n\tmax_speed_mps: 3", "is not YAML: found character '\\t' that cannot start any token in line 2"),
        (b"planner: !!python/object:os.system {}", "is not YAML: could not determine a constructor for the tag"),
        (b"planner: \xff\xfe", "is not UTF-8 text: invalid start byte at byte 9"),
        (b"planner: \x00", "is not YAML: unacceptable character #x0000"),
        (b"- guard", "the configuration is ['guard'], expected settings as key: value"),
        (b"guard", "the configuration is 'guard', expected settings as key: value"),
        (b"[" * 5000, "nests deeper than 64 levels"),
        (b"? [1, 2]\n: 3", "is not YAML: found unhashable key in line 1"),
        (b"guard: &g {clearance_m: *g}", "is not YAML: an alias is not allowed here in line 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, content, text):
    file = tmp_path / "bad.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as fault:
        load(file)
    assert str(file) in str(fault.value)
    assert text in str(fault.value).replace(str(file), "")
    assert "\n" not in str(fault.value)


def test_a_shipped_file_is_found_from_any_folder(tmp_path, monkeypatch):
    """In the checkout, or in share/reflectdrive of an installation; one of the working directory is taken first."""
    monkeypatch.chdir(tmp_path)
    assert load("config/recorded.yaml") == load(ROOT / "config/recorded.yaml") != Config()
    assert installing.shipped("models/reflectdrive2_small") == ROOT / "models/reflectdrive2_small"
    share = tmp_path / "prefix/share/reflectdrive/config"
    share.mkdir(parents=True)
    (share / "installed.yaml").write_text("planner: idm_proposals")
    site_packages = tmp_path / "prefix/lib/python3.12/site-packages"
    monkeypatch.setattr(installing, "__file__", str(site_packages / "reflectdrive_ros/infra/installing.py"))
    assert load("config/installed.yaml").planner == "idm_proposals"
    (tmp_path / "config").mkdir()
    (tmp_path / "config/installed.yaml").write_text("planner: constant_velocity")
    assert load("config/installed.yaml").planner == "constant_velocity"
    assert installing.shipped("config/nowhere.yaml") == Path("config/nowhere.yaml")


@given(
    st.one_of(st.binary(), st.text().map(str.encode), st.text("{}[]:,&*!-?|>'\" \n\ta1.", max_size=40).map(str.encode))
)
def test_any_bytes_are_a_configuration_or_one_sentence(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("config") / "any.yaml"
    file.write_bytes(content)
    assert outcome(lambda: load(file)).startswith(("taken", "refused"))


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from([leaf.name.split(".")[-1] for leaf in LEAVES]), inner)
    ),
)


@given(st.dictionaries(st.sampled_from([entry.name for entry in dataclasses.fields(Config)]), yaml_values))
def test_any_values_are_a_configuration_or_one_sentence(values):
    assert outcome(lambda: override(Config(), values)).startswith(("taken", "refused"))


@pytest.mark.parametrize(("text", "value"), [("2e-4", 2e-4), ("1.5E3", 1500.0), ("3", 3), ("map", "map"), ("1e", "1e")])
def test_a_setting_of_the_command_line_may_have_an_exponent(text, value):
    parsed = arguments.settings_of([f"a.b={text}"])["a.b"]
    assert parsed == value
    assert type(parsed) is type(value)
