"""Claims about `reflectdrive scenes` and `reflectdrive eval` on made scenes: whoever drives like the expert scores
like him, every number is told with how many scenes it stands on, and every fault is one sentence."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import commands
import cv2
import hand_scenes
import numpy as np
import pytest
from planners_of_tests import PlannersOfTests
from scenes import config as scenes_config
from stored_scenes import scenes_folder, store  # noqa: F401 (fixtures)
from tiny_model import tiny_model  # noqa: F401 (a fixture)

from reflectdrive_ros.cli import eval
from reflectdrive_ros.cli import scenes as scenes_run
from reflectdrive_ros.core.config import Config
from reflectdrive_ros.core.domain import Plan, Trajectory
from reflectdrive_ros.core.recipe_config import PipelineConfig
from reflectdrive_ros.data import sets, shards
from reflectdrive_ros.data.scene import Tracks
from reflectdrive_ros.evaluation import bootstrap, driving_scores, open_loop, scene_sets, variants
from reflectdrive_ros.infra import parallel
from reflectdrive_ros.maps import sumo
from reflectdrive_ros.planning.planner import PlanningError
from reflectdrive_ros.runtime import network
from reflectdrive_ros.scoring.scorer import score

KEYS = {"scenes", "pdms", "nc", "dac", "ttc", "comfort", "ep"}
ROOT = Path(__file__).resolve().parents[1]
QUIET = eval.Console(quiet=True)


command = partial(commands.run, workers=1)  # each takes a second to start, and tests run side by side


@pytest.fixture(scope="module")
def written(folder):
    assert command(eval, "--scenes", folder, "--json", folder.parent / "eval.json") == 0
    return json.loads((folder.parent / "eval.json").read_text())


def evaluate(folder, planners=("constant_velocity",), config=None, families=None, limit=None, workers=1):
    config = config or Config()
    rows = variants.of_planners(config, planners, ["objects"])
    return open_loop.evaluate(folder, rows, config, families, limit, workers, QUIET)


@pytest.fixture
def planners(monkeypatch):
    """Planners that only tests have; no other process would know them, so the work is done in this one."""

    def share_out(tasks, work, workers, on_progress):
        for index, task in enumerate(tasks):
            yield parallel.Outcome(task, work(task, partial(on_progress, index)))

    monkeypatch.setattr(parallel, "map_restartable", share_out)
    return PlannersOfTests(monkeypatch)


def sample_with(monkeypatch, make, **other):
    sampler = (make, {**hand_scenes.MADE_BY, **other})
    monkeypatch.setattr(scene_sets, "make_sampler", lambda *_size, images, first=0, displaced_share=0.0: sampler)


@pytest.fixture
def by_hand(monkeypatch, tmp_path):
    """The sampler is the hand-made one, shards have 10 scenes, sets 20, and lie in a folder of the test."""
    sample_with(monkeypatch, hand_scenes.make)
    monkeypatch.setattr(sets, "SHARD", 10)
    monkeypatch.setattr(sets, "SIZES", dict.fromkeys(sets.SIZES, 20))
    monkeypatch.setenv("REFLECTDRIVE_SCENES", str(tmp_path / "sets"))


# --- eval ------------------------------------------------------------------------------------------------------------


def test_the_keys_that_others_rely_on(written):
    assert written.keys() >= KEYS | {"families", "version", "commit", "device", "date", "command", "drivers", "set"}
    assert set(written["drivers"]) == {"expert", "constant_velocity (objects)", "route_follower (objects)"}
    assert written["planner"] == "constant_velocity (objects)"
    for means in (written, *written["drivers"].values(), *written["families"].values()):
        assert means.keys() >= KEYS
        assert all(0 <= means[key] <= 100 for key in KEYS - {"scenes"})
    for driver in written["drivers"].values():
        assert driver["scenes"] == 20 == sum(means["scenes"] for means in driver["families"].values())
        low, high = driver["pdms_95"]
        assert low <= driver["pdms"] <= high


def test_the_rows_are_the_scores_of_the_scenes(folder):
    result = evaluate(folder)
    assert result.names == [f"test-{k:05d}-{n:03d}" for k, count in enumerate((8, 8, 4)) for n in range(count)]
    scenes = shards.read(folder, images=False, on_damage=pytest.fail)
    for scene, row in zip(scenes, result.scores["expert"], strict=True):
        assert row[0] == pytest.approx(float(score(scene.scored(), scene.expert[None]).score[0]), abs=1e-9)


def test_a_planner_that_drives_like_the_expert_scores_like_him(folder, planners):
    scenes = shards.read(folder, images=False, on_damage=pytest.fail)
    experts = {tuple(scene.ego.map_from_ego): scene.expert for scene in scenes}

    def copy(state, observation, planner_context):
        poses = experts[tuple(observation.ego.map_from_ego)]
        return state, Plan(observation.stamp_ns, observation.ego.map_from_ego, Trajectory(poses, 0.5))

    planners["copy"] = copy
    bare = Config(pipeline=PipelineConfig(vary=False, select=False, repair=False))
    result = evaluate(folder, ("copy",), bare)
    np.testing.assert_allclose(result.scores["copy (objects)"], result.scores["expert"], atol=1e-6)


def test_a_planner_with_eyes_sees_the_images_and_no_planner_the_future(tmp_path, planners):
    store(tmp_path / "set", (2,), images=True)
    observations = []

    def look(state, observation, planner_context):
        observations.append(observation)
        raise PlanningError("only looking")

    planners["look"] = look
    result = evaluate(tmp_path / "set", ("look",))
    assert [len(observation.cameras) for observation in observations] == [6, 6]
    assert all(observation.agents.predicted_poses is None for observation in observations)
    assert [row[0] for row in result.scores["look (objects)"]] == [0, 0]
    assert result.failures["look (objects)"][0] == "test-00000-000: only looking"


def test_the_interval_narrows_with_the_number_of_scenes_and_holds_the_mean():
    generator = np.random.default_rng(5)
    few, many = (generator.random(count) for count in (30, 3000))
    widths = [np.subtract(*bootstrap.percent_interval(values)[::-1]) for values in (few, many)]
    assert widths[0] == pytest.approx(10 * widths[1], rel=0.4)
    assert widths[1] == pytest.approx(2 * 1.96 * 100 / np.sqrt(12 * 3000), rel=0.2)
    assert bootstrap.percent_interval(few) == bootstrap.percent_interval(few)


def damage(folder, how):
    """Harms a set of 8, 8 and 4 scenes; returns how many can be scored, how many are expected, and the sentence."""
    index = shards.index_of(folder)
    first, second, third = index.shards
    if how == "missing":
        (folder / second.file).unlink()
        return 12, 20, "test-00001.tar is missing"
    if how == "damaged":
        (folder / second.file).write_bytes(b"broken")
        return 12, 20, "test-00001.tar has 6 bytes"
    if how == "listed twice":
        shards.write_index(folder, replace(index, shards=(first, second, second, third)))
        return 20, 28, "lists the scenes of test-00001.tar more than once"
    if how == "copied":
        copy = replace(second, file="test-00007.tar")
        (folder / copy.file).write_bytes((folder / second.file).read_bytes())
        shards.write_index(folder, replace(index, shards=(first, second, third, copy)))
        return 20, 28, "lists the scenes of test-00007.tar more than once"
    if how == "without scenes":
        empty = shards.write_shard(folder, "test-00009", shards.ShardContent((), {}, {}), requested=8, generator={})
        shards.write_index(folder, replace(index, shards=(first, second, third, empty)))
        return 20, 20, "test-00009.tar holds no scene"
    count = {"counted too many": 11, "counted too few": 5}[how]
    shards.write_index(folder, replace(index, shards=(first, replace(second, scenes=count), third)))
    scored = 12 + min(count, 8)
    return scored, 12 + count, f"test-00001.tar holds 8 scenes, expected {count} by its note"


@pytest.mark.parametrize(
    "how", ["missing", "damaged", "listed twice", "copied", "without scenes", "counted too many", "counted too few"]
)
def test_a_damaged_set_is_no_success_and_its_scores_say_how_many_scenes_of_how_many(how, tmp_path, capsys):
    store(tmp_path / "set")
    scored, expected, fault = damage(tmp_path / "set", how)
    assert command(scenes_run, "--check", tmp_path / "set") == 1
    assert fault in capsys.readouterr().err
    file = tmp_path / "eval.json"
    assert command(eval, "--scenes", tmp_path / "set", "--json", file) == 1
    content = json.loads(file.read_text())
    assert (content["scenes"], content["expected_scenes"]) == (scored, expected)
    (sentence,) = content["left_out"]
    assert fault in sentence
    output = capsys.readouterr().out
    assert sentence in output
    assert f"set 'test', {scored} of {expected} scenes" in output


def test_check_decodes_every_scene_and_image(tmp_path, capsys):
    """Checksums are right, one image is none."""
    folder = tmp_path / "set"
    folder.mkdir()
    load = shards.ShardContent.of(hand_scenes.Shard("test", 0, 2, True).scenes())
    image = next(name for name in load.samples[1] if name.endswith(".jpg"))
    load = replace(load, samples=(load.samples[0], {**load.samples[1], image: b"no image"}))
    note = shards.write_shard(folder, "test-00000", load, requested=2, generator=hand_scenes.MADE_BY)
    shards.write_index(folder, shards.Index("test", 2, (note,), hand_scenes.MADE_BY))
    assert command(scenes_run, "--check", folder) == 1
    assert f"{image} is no image" in capsys.readouterr().err


def test_a_limit_makes_the_shards_it_needs_and_scores_the_same_scenes_when_the_set_is_whole(by_hand, tmp_path, capsys):
    def evaluated(name, *more):
        file = tmp_path / name
        assert command(eval, "--scenes", "val", "--planner", "constant_velocity", "--json", file, *more) == 0
        return json.loads(file.read_text()), capsys.readouterr().err

    few, err = evaluated("few.json", "--limit", 8)
    (folder,) = (tmp_path / "sets").iterdir()
    assert f"the set 'val' is not whole in {folder}: making its first 10 of 20 scenes" in err
    assert [path.name for path in folder.glob("*.tar")] == ["val-00000.tar"]
    assert few["scenes"] == 8
    assert few["left_out"] == []
    assert "making" not in evaluated("again.json", "--limit", 8)[1]
    whole, err = evaluated("whole.json")
    assert "making it, 20 scenes" in err
    assert whole["scenes"] == 20
    later, _ = evaluated("later.json", "--limit", 8)
    assert later["drivers"] == few["drivers"]


def test_a_named_folder_without_a_set_is_refused_and_stays_as_it_is(by_hand, tmp_path, capsys):
    assert command(eval, "--scenes", tmp_path / "typo") == 2
    output = capsys.readouterr().err
    folder = tmp_path / "typo"
    assert f"{folder} holds no scene set: name one of train, val, test, hard, or make one there with " in output
    assert f"`reflectdrive scenes --out {folder}`" in output
    assert not folder.exists()


@pytest.mark.parametrize("case", ["all broken", "no family"])
def test_a_set_without_a_scene_to_score_is_one_sentence_and_exit_code_2(case, tmp_path, capsys):
    store(tmp_path / "set", (3,), name="test")
    if case == "all broken":
        (tmp_path / "set" / "test-00000.tar").unlink()
    extra = ("--families", "u_turn") if case == "no family" else ()
    assert command(eval, "--scenes", tmp_path / "set", *extra) == 2
    assert str(tmp_path) in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--closed-loop", "--scenes", "test"), "--scenes is for recorded scenes, and --closed-loop drives in worlds"),
        (("--closed-loop", "--limit", 3), "--limit is for recorded scenes, and --closed-loop drives in worlds"),
        (("--closed-loop", "--privilege", "words"), "--privilege is for recorded scenes, and --closed-loop drives in"),
        (("--worst", 3), "--worst is for drives in closed loop: add --closed-loop, or leave it out"),
        (("--scenes", "test", "--judge", "carla"), "--judge is for drives in closed loop: add --closed-loop"),
        (("--limit", 3), "real_tracks is scored whole: --limit is for sets of the proving ground"),
        (("--planner", "route_follower", "--random-weights"), "--random-weights is given, but route_follower has no"),
        (
            ("--planner", "reflectdrive2", "--setting", "model.file=''", "--setting", "model.sha256=''"),
            "planner reflectdrive2 needs a model: set model.file and model.sha256, or",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused_in_one_sentence(words, sentence, capsys):
    assert command(eval, *words) == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert output.err.startswith(sentence)
    assert output.out == ""


# --- planners that have learned --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def camera_set(tmp_path_factory):
    """A set with images."""
    folder = tmp_path_factory.mktemp("seen") / "test"
    store(folder, (3, 2), images=True)
    return folder


def of_model(model, *words):
    return ("--planner", "reflectdrive2", "--model", model.file, *words)


def test_a_model_is_scored_with_the_best_of_its_proposals(camera_set, tiny_model, tmp_path, capsys):  # noqa: F811
    file = tmp_path / "eval.json"
    unrepaired = ("--setting", "pipeline.repair=false", "--setting", "pipeline.vary=false")
    assert command(eval, *of_model(tiny_model, "--scenes", camera_set, "--json", file, *unrepaired)) == 0
    content = json.loads(file.read_text())
    assert (content["planner"], content["scenes"], content["failures"]) == ("reflectdrive2 (objects)", 5, {})
    assert content["model_sha256"] == tiny_model.sha256
    assert content["nc"] > 0  # it drives
    assert content["drivers"]["reflectdrive2 (objects)"]["best_of_k"] == content["best_of_k"] >= content["pdms"]
    assert "best_of_k" not in content["drivers"]["expert"]
    assert "best of K" in capsys.readouterr().out


def test_random_weights_have_a_row_beside_the_planner_for_each_privilege(camera_set, tiny_model, tmp_path):  # noqa: F811
    """The model goes straight on at 8 m/s; a network that has learned nothing drives otherwise."""
    file = tmp_path / "eval.json"
    options = ("--privilege", "route", "objects", "--random-weights", "--limit", 2)
    assert command(eval, *of_model(tiny_model, "--scenes", camera_set, "--json", file, *options)) == 0
    content = json.loads(file.read_text())
    drivers = content["drivers"]
    assert list(drivers) == [
        "expert",
        "reflectdrive2 (route)",
        "reflectdrive2 (objects)",
        "reflectdrive2 random weights (route)",
        "reflectdrive2 random weights (objects)",
    ]
    assert (content["random_weights"], content["failures"]) == (True, {})
    assert "best_of_k" in drivers["reflectdrive2 random weights (route)"]
    networks = ("reflectdrive2", "reflectdrive2 random weights")
    for privilege in ("route", "objects"):
        errors = [drivers[f"{name} ({privilege})"]["displacement"]["ade_m"] for name in networks]
        assert errors[0] != errors[1]


def test_rows_are_of_trained_weights_of_random_ones_or_of_both():
    planners = ("reflectdrive2", "route_follower")
    for trained, random, rows in (
        (True, False, ["reflectdrive2", "route_follower"]),
        (True, True, ["reflectdrive2", "reflectdrive2 random weights", "route_follower"]),
        (False, True, ["reflectdrive2 random weights", "route_follower"]),
    ):
        assert list(variants.of_planners(Config(), planners, ("",), random, trained)) == rows


def test_random_weights_have_the_sizes_of_the_configured_model_and_follow_from_a_seed():
    """Those of the shipped graphs, from their card alone, and of the shipped weights are the same network."""
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install -e .[train])")
    from reflectdrive_ros.model.checkpoint import load, random_net

    home = ROOT / "models" / "reflectdrive2_small"
    weights = home / "weights.safetensors"
    trained = load(weights, json.loads((home / "card.json").read_text())["sha256"])
    of_graphs, of_weights = random_net(home / "onnx" / "card.json", 0), random_net(weights, 0)
    assert of_graphs.config == of_weights.config == trained.config
    for (name, first), second, learned in zip(
        of_graphs.named_parameters(), of_weights.parameters(), trained.parameters(), strict=True
    ):
        assert torch.equal(first, second), name
        assert first.shape == learned.shape
        assert not torch.equal(first, learned), name


@pytest.fixture
def every_goal(monkeypatch):
    """Networks draft their goals however improbable these are, as those of an untrained one."""
    configured = network.torch_decoding

    def without_floor(decoding):
        rules = configured(decoding)
        return replace(rules, goals=replace(rules.goals, floor=0.0))

    monkeypatch.setattr(network, "torch_decoding", without_floor)


@pytest.mark.usefixtures("every_goal")
@pytest.mark.parametrize("planner", ["reflectdrive", "reflectdrive2"])
def test_the_best_of_a_row_is_found_with_what_that_row_is_told(planner, tiny_model, monkeypatch):  # noqa: F811
    """Who is not told the route plans the same on another; who is told of no objects plans the same without them."""
    settings = scenes_config(**tiny_model.settings, decoding__goal_spacing_m=3.0)
    rows = variants.of_planners(settings, [planner], ("words", "route", "objects"))
    judged = []
    monkeypatch.setattr(driving_scores, "best_score", lambda scene, plans, config: judged.append(plans) or 0.0)
    one = hand_scenes.scene()
    tracks = one.tracks
    nobody = Tracks(tracks.poses[:0], tracks.speeds_mps[:0], tracks.present[:0], tracks.sizes[:0], tracks.kinds[:0])
    for scene in (one, replace(one, tracks=nobody), replace(one, route=one.route + np.array([0.0, 5.0, 0.0]))):
        open_loop._score_scene(scene, rows, settings)
    (words, route, _), (words_alone, route_alone, _), (words_elsewhere, route_elsewhere, _) = (
        judged[at : at + 3] for at in (0, 3, 6)
    )
    np.testing.assert_array_equal(words, words_alone)
    np.testing.assert_array_equal(words, words_elsewhere)
    np.testing.assert_array_equal(route, route_alone)
    assert not np.array_equal(route, route_elsewhere)
    assert not np.array_equal(words, route)
    assert all(len(plans) > 2 for plans in judged)  # that of one goal, and those to all


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--sha256", "abc"), "expected abc"),
        (("--setting", "model.device=tpu"), "model.device is 'tpu'"),
        (("--setting", "decoding.goals=0"), "setting decoding.goals is 0, expected 1 to 32"),
        (("--planner", "route_follower"), "--model is given, but route_follower has none"),
        (("--scenes", "real_tracks"), "real_tracks has no images for reflectdrive2"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_sentence(camera_set, tiny_model, words, sentence, capsys):  # noqa: F811
    assert command(eval, *of_model(tiny_model, "--scenes", camera_set, *words)) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert sentence in line


# --- scenes ----------------------------------------------------------------------------------------------------------


def test_scenes_makes_a_set_and_says_what_is_in_it(by_hand, tmp_path, capsys):
    file = tmp_path / "scenes.json"
    assert command(scenes_run, "--count", 15, "--out", tmp_path / "set", "--workers", 1, "--json", file) == 0
    content = json.loads(file.read_text())
    assert (content["set"], content["scenes"], content["counts"]) == ("test", 15, {"overlap": 6})
    assert content["scenes_per_s"] > 0
    assert sum(content["families"].values()) == 15
    assert "15 scenes of 15" in capsys.readouterr().out
    assert command(scenes_run, "--check", tmp_path / "set") == 0
    assert "2 shards are complete, 0 damaged" in capsys.readouterr().out


def test_the_sheet_shows_the_scenes(tmp_path):
    """A row each: three images and a view from above, in which the expert's way is drawn."""
    store(tmp_path / "set", (6,), images=True)
    scenes_run.show(tmp_path / "set", 3, tmp_path / "sheet.png", QUIET)
    sheet = cv2.cvtColor(cv2.imread(str(tmp_path / "sheet.png")), cv2.COLOR_BGR2RGB)
    row = scenes_run.contact_sheet([hand_scenes.scene()]).shape
    assert sheet.shape == (3 * row[0], row[1], 3)
    from_above = sheet[:, -300:].astype(int)
    assert (np.abs(from_above - (10, 140, 60)).sum(axis=2) < 30).sum() > 100


@pytest.mark.parametrize("case", ["full disk", "no folder", "no sumo", "another version"])
def test_scenes_that_cannot_be_made_are_one_sentence(case, by_hand, tmp_path, capsys, monkeypatch):
    target = tmp_path / "set"
    if case == "full disk":
        sample_with(monkeypatch, hand_scenes.make_on_a_full_disk)
    if case == "no folder":
        (tmp_path / "file").touch()
        target = tmp_path / "file" / "set"
    if case == "no sumo":
        monkeypatch.setattr(sumo, "binary", lambda name: (_ for _ in ()).throw(sumo.SumoMissing()))
    if case == "another version":
        store(target)
        sample_with(monkeypatch, hand_scenes.make, scene_version=2)
    assert command(scenes_run, "--out", target, "--workers", 1) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    expected = {
        "full disk": "town.net.xml cannot be written: No space left on device; complete shards are kept",
        "no folder": "Not a directory",
        "no sumo": "pip install '.[sim]'",
        "another version": "holds a set with other options (scene_version differ)",
    }
    assert expected[case] in sentence
