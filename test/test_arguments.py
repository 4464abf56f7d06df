"""Claims about numbers on the command line: every numeric option of every command refuses what it cannot use.

The parsers of all commands are walked, so that an option that comes later is held to the same.
"""

import argparse
import importlib
import sys
from pathlib import Path

import commands
import pytest

from reflectdrive_ros.__main__ import BENCHES, COMMANDS, main
from reflectdrive_ros.infra import arguments, installing
from reflectdrive_ros.infra.arguments import Range

# what makes a number's place in the help; `metavar="N"` without a range would be a number that nobody checks
NUMERIC_METAVARS = {"N", "M", "S"}
PROGRAMS = ("demo.live", "demo.world_node", "ros.node")  # without `reflectdrive COMMAND`
MODULES = ("replay.conformance", "training.probe")  # likewise, with a parser of their own
TEXTS = (None, Path, str, arguments.cluster, arguments.location, installing.shipped)
OTHER = {"--camera": "WxH", "--show": "N FILE", "--privilege": "NAME"}  # tested below


class Parsed(Exception):
    """Carries the parser of a command in place of what it would do."""


def parser_of(monkeypatch, program, words):
    def parse(self, args=None, namespace=None):
        raise Parsed(self)

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        patch.setattr(sys, "argv", ["program", *words])
        with pytest.raises(Parsed) as caught:
            program(words) if words else program()
    return caught.value.args[0]


def all_commands(monkeypatch):
    """Name and parser of every command, bench and module with a parser of its own."""
    for words in [*([name] for name in COMMANDS), *(["bench", name] for name in BENCHES)]:
        parser = parser_of(monkeypatch, main, words)
        for word in words:
            parser = subcommands(parser)[word]
        kinds = [(f"{words[-1]} {kind}", one) for kind, one in subcommands(parser).items()]
        yield from kinds or [(" ".join(words), parser)]
    for name in MODULES:
        module = importlib.import_module(f"reflectdrive_ros.{name}")
        parser = argparse.ArgumentParser(description=module.__doc__)
        module.add_arguments(parser)
        yield name, parser


def subcommands(parser):
    """Name -> parser."""
    return next((each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)), {})


def all_options(monkeypatch):
    """Command, its parser and each of its options."""
    mains = {name: importlib.import_module(f"reflectdrive_ros.{name}").main for name in PROGRAMS}
    programs = [(name, parser_of(monkeypatch, main, [])) for name, main in mains.items()]
    parsers = (*all_commands(monkeypatch), *programs)
    return [(name, parser, action) for name, parser in parsers for action in parser._actions]


def beyond(kind):
    """What an option of a range must refuse."""
    step = 1 if isinstance(kind.low, int) else max(abs(kind.high) * 1e-3, 1e-6)
    outside = repr(kind.low - step), repr(kind.high + step)
    return ("nan", "NaN", "inf", "-inf", "1e308", "-1e308", "9" * 5000, "", " ", "x", "1,5", "0x10", *outside)


def test_every_numeric_option_refuses_what_is_no_number_of_its_range(monkeypatch, capsys):
    tried = set()
    for command, parser, action in all_options(monkeypatch):
        if not isinstance(action.type, Range):
            continue
        name = action.option_strings[-1]
        tried.add(name)
        for text in beyond(action.type):
            with pytest.raises(SystemExit) as ended:
                parser.parse_args([f"{name}={text}"])
            output = capsys.readouterr().err.splitlines()
            assert ended.value.code == 2, (command, name, text)
            assert f"argument {name}: '" in output[-1], (command, name, text, output[-1])
            assert len(output[-1]) < 200
        for value in (action.type.low, action.type.high):
            assert action.type(str(value)) == value
        if action.default is not None:
            assert action.type(str(action.default)) == type(action.type.low)(action.default), (command, name)
    expected = {"--seconds", "--duration", "--rate", "--port", "--seed", "--count", "--width", "--jobs", "--workers"}
    assert expected <= tried


def test_no_option_takes_a_number_without_a_range(monkeypatch):
    for command, _, action in all_options(monkeypatch):
        name = action.option_strings[-1] if action.option_strings else action.dest
        if isinstance(action.type, Range) or name in OTHER:
            continue
        assert action.type in TEXTS, f"{command} {name}: give it a type of arguments.py"
        assert action.metavar not in NUMERIC_METAVARS, f"{command} {name}: a number without a range"
        assert not isinstance(action.default, (int, float)) or isinstance(action.default, bool), f"{command} {name}"


WITHOUT_SETTINGS = (  # their help says why
    *("scenes", "compare", "import diffusion-planner"),
    *("bench scoring", "bench results", "training.probe", "score"),
)
WITHOUT_JSON = ("bench results", "training.probe")  # likewise


def test_every_command_takes_settings_and_writes_json_or_says_why_not(monkeypatch):
    tried = set()
    for name, one in all_commands(monkeypatch):
        options = {option for action in one._actions for option in action.option_strings}
        text = " ".join((one.description or "").split())
        tried.add(name)
        assert ("--json" in options) == (name not in WITHOUT_JSON), name
        assert ("o JSON file (--json) is written" in text) == (name in WITHOUT_JSON), name
        assert ("--setting" in options) == (name not in WITHOUT_SETTINGS), name
        assert ("o setting (--setting) changes" in text) == (name in WITHOUT_SETTINGS), name
    assert {*WITHOUT_SETTINGS, *WITHOUT_JSON} <= tried


PARITY = ["bench", "parity", "--model", "weights", "--graphs", "card"]


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["engine", "card", "--setting", "decoding.goals=4"], "the command reads model.engines, model.device"),
        (["engine", "card", "--without-gpu", "--setting", "model.device=cuda:1"], "no effect with --without-gpu"),
        (["make-bag", "pandaset_002", "{out}", "--setting", "cameras.width=320"], "--setting has no effect on the"),
        (["make-bag", "world", "{out}", "--setting", "cameras.widht=320"], "cameras.widht"),
        (["export", "weights", "--out", "{out}", "--setting", "guard.clearance_m=1"], "the command reads decoding"),
        (["doctor", "--setting", "planner"], "planner: expected NAME=VALUE"),
        (["bench", "node", "--setting", "planner=route_follower"], "--setting planner has no effect here: use --pl"),
        ([*PARITY, "--setting", "decoding.goals=4"], "--setting decoding.goals has no effect here: the command reads"),
    ],
)
def test_a_setting_without_effect_is_refused(words, output, tmp_path, capsys):
    assert output in commands.refusal(capsys, *(word.replace("{out}", str(tmp_path / "out")) for word in words))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", ["x", "0x0", "-1x5", "nanx5", "99999999999x5", "1920", "1920x1080x3", "8x8"])
def test_a_camera_of_no_size_is_refused(size, capsys):
    assert "argument --camera: " in commands.refusal(capsys, "export", "weights", "--out", "out", f"--camera={size}")


@pytest.mark.parametrize("number", ["0", "-1", "nan", "1e308", "99999999999"])
def test_a_number_of_scenes_to_show_is_refused_before_a_set_is_made(number, tmp_path, capsys):
    words = ("scenes", "--count", 1, "--out", tmp_path / "set", "--show", number, tmp_path / "image.png")
    assert f"'{number}' is no whole number from 1 to " in commands.refusal(capsys, *words)
    assert not (tmp_path / "set").exists()


def test_a_few_processes_for_each_core_are_allowed():
    assert arguments.process_count().high >= 8


@pytest.mark.parametrize("count", ["2", "3"])
def test_processes_and_a_cluster_exclude_each_other_also_where_the_number_is_the_default(capsys, count):
    parser = argparse.ArgumentParser()
    arguments.add_workers_arguments(parser, "--workers", 2, "processes")
    assert parser.parse_args([]).workers == 2
    with pytest.raises(SystemExit):
        parser.parse_args(["--workers", count, "--cluster", "local"])
    assert "not allowed with" in capsys.readouterr().err
