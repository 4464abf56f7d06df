"""Engines on disk: loaded by all that they depend on, complete or refused, with a sentence that says what to do."""

import json
import os
from dataclasses import fields, replace

import pytest

from reflectdrive_ros.runtime.trt.engine_cache import EngineError, EngineKey, Machine, load, store

THOR = Machine("10.13.3.9", "NVIDIA Thor", "11.0", 20, "13.0")
FIT = EngineKey("step", "ab" * 32, "bf16", ("STRONGLY_TYPED",), THOR)
PLAN = b"an engine"


def refused(folder, fit=FIT):
    with pytest.raises(EngineError) as fault:
        load(folder, fit, "build it")
    assert str(fault.value).endswith("; build it")
    assert "\n" not in str(fault.value)
    return str(fault.value)


def others():
    """The fit with each of its parts in turn changed."""
    values = {"graph": "prefill_goal", "graph_sha256": "cd" * 32, "precision": "fp32", "flags": ()}
    machine = {"tensorrt": "10.16.2.10", "gpu": "NVIDIA H100", "capability": "9.0", "processors": 8, "cuda": "13.2"}
    assert {*values, *machine} == {field.name for kind in (EngineKey, Machine) for field in fields(kind)} - {"machine"}
    keys = {name: replace(FIT, **{name: value}) for name, value in values.items()}
    return keys | {name: replace(FIT, machine=replace(THOR, **{name: value})) for name, value in machine.items()}


def test_what_was_stored_is_loaded(tmp_path):
    file = store(tmp_path / "new", FIT, PLAN)
    assert file.name == f"{FIT.name}.plan"
    assert file.name.startswith("step-")
    assert load(tmp_path / "new", FIT, "") == PLAN
    card = json.loads(file.with_suffix(".json").read_text())
    assert (card["gpu"], card["tensorrt"], card["processors"]) == ("NVIDIA Thor", "10.13.3.9", 20)


@pytest.mark.parametrize("part", others())
def test_another_part_is_another_engine(tmp_path, part):
    other = others()[part]
    store(tmp_path, FIT, PLAN)
    assert other.name != FIT.name
    refused(tmp_path, other)
    store(tmp_path, other, b"another")
    assert (load(tmp_path, FIT, ""), load(tmp_path, other, "")) == (PLAN, b"another")


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ("gpu", "was built for the GPU NVIDIA Thor; here it would be the GPU NVIDIA H100"),
        ("tensorrt", "was built for TensorRT 10.13.3.9; here it would be TensorRT 10.16.2.10"),
        ("graph_sha256", "built for the graph with SHA-256 abababababab; here it would be the graph with SHA-256 cdcd"),
        ("processors", "was built for 20 multiprocessors; here it would be 8 multiprocessors"),
        ("precision", "was built for bf16 arithmetic; here it would be fp32 arithmetic"),
        ("cuda", "was built for CUDA 13.0; here it would be CUDA 13.2"),
        ("flags", "was built for the builder's flags STRONGLY_TYPED; here it would be the builder's flags "),
        ("graph", "there is no TensorRT engine of prefill_goal in"),
    ],
)
def test_the_sentence_tells_in_what_the_nearest_engine_differs(tmp_path, part, sentence):
    store(tmp_path, FIT, PLAN)
    distant = replace(FIT, precision="fp32", machine=replace(THOR, gpu="NVIDIA Orin", capability="8.7", cuda="12.6"))
    store(tmp_path, distant, PLAN)
    complaint = refused(tmp_path, others()[part])
    assert sentence in complaint
    assert "Orin" not in complaint


def test_an_empty_or_missing_folder_is_named(tmp_path):
    assert f"there is no TensorRT engine of step in {tmp_path}" in refused(tmp_path)
    assert "there is no TensorRT engine of step in" in refused(tmp_path / "nowhere")


@pytest.mark.parametrize("left", [b"", PLAN[:4], PLAN + b"!"])
def test_a_damaged_plan_is_not_given_out(tmp_path, left):
    file = store(tmp_path, FIT, PLAN)
    file.write_bytes(left)
    assert f"TensorRT engine {file} is damaged" in refused(tmp_path)
    store(tmp_path, FIT, PLAN)
    assert load(tmp_path, FIT, "") == PLAN


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"graph": "step"}'])
def test_a_plan_without_the_card_that_belongs_to_it_is_not_given_out(tmp_path, content):
    card = store(tmp_path, FIT, PLAN).with_suffix(".json")
    if content is None:
        card.unlink()
    else:
        card.write_text(content)
    assert "beside it lacks its key" in refused(tmp_path)


def test_a_plan_under_the_name_of_another_is_not_given_out(tmp_path):
    """Copied from the vehicle next door, and renamed."""
    next_door = others()["gpu"]
    file = store(tmp_path, next_door, PLAN)
    for ending in (".plan", ".json"):
        file.with_suffix(ending).rename(tmp_path / f"{FIT.name}{ending}")
    assert "lacks its key" in refused(tmp_path)


def test_a_write_that_breaks_off_leaves_what_was_there(tmp_path, monkeypatch):
    store(tmp_path, FIT, PLAN)

    def power_cut(source, target):
        raise OSError("power")

    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(OSError, match="power"):
        store(tmp_path, FIT, b"a new one")
    assert load(tmp_path, FIT, "") == PLAN
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json", ".plan"]
