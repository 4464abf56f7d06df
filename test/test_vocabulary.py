"""The package and its pages use the field's terms: none of the words that those terms replaced comes back."""

import ast
import re
from collections import defaultdict

import pytest
from sources import ROOT, trees

pytestmark = pytest.mark.meta

PLACES = ("reflectdrive_ros", "docs", "README.md", "config", "launch", "msg")
TEXT = {".py", ".md", ".yaml", ".xml", ".html", ".js", ".css", ".msg", ".rviz", ".svg"}

# a word of which every use is wrong: the term to use; letters end a word, so that goal_odds counts as odds
RETIRED = {
    # names
    "pictures?|pictured": "image",
    "eyes": "vision encoder, or cameras",
    "worth": "score, value",
    "odds": "goal value",
    "oracles?": "privilege",
    "pilots?": "planning core",
    "crew": "worker pool",
    "blank": "unconditional, empty",
    "birdseye": "bev",
    "foresight": "prediction",
    "sight": "view, attention mask",
    "mend(s|ed|ing)?": "repair, correct",
    "calmed|gentler": "relaxed",
    "steadied": "limited",
    "straightened": "in the Frenet frame",
    "begin[_-]with": "init_from",
    "mirror[ _-]share": "flip_prob",
    '"(blocks|real|seen)"': "actions, valid, features: tensors of a graph",
    # sentences
    "told": "given, reported",
    "looked[ _-]at|looks[ _-]at": "evaluated, read, used",
    "reckon(s|ed|ing)?": "compute",
    "weigh(s|ed|ing)?": "weight, reweight, rank",
    "sought": "searched",
    "who is late": "late, after the deadline",
    "whoever|whomever": "the agent that, the process that",
    "(some|any|every|no)body|everyone": "an agent, all agents, no process",
    "anew": "again, from scratch",
    "made-up|make-believe": "generated, synthetic",
    "by heart": "overfits",
    "(is|are|was|were) driven by": "follow, use",
    "at a stretch": "without a break",
    "thrown away": "discarded",
    "held against": "compared with",
    "jolts?|jolted": "jerk",
    "ridden": "used by bicycles",
    "shared?[ _-]out|deal[st]? out": "distributed",
    "believed": "predicted, used",
    "yardsticks?": "reference progress",
}
WORD = re.compile("|".join(rf"(?<![A-Za-z])(?:{word})(?![A-Za-z])" for word in RETIRED), re.IGNORECASE)

# keys of stored scenes and sets
STORED = {
    "reflectdrive_ros/data/codec.py": {"pictures"},
    "reflectdrive_ros/sim/sampler.py": {"pictures"},
}


def files():
    for folder in PLACES:
        path = ROOT / folder
        yield from ([path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in TEXT))


def term_of(word):
    return next(term for pattern, term in RETIRED.items() if re.fullmatch(pattern, word, re.IGNORECASE))


def uses(file, text):
    """(line number, word) of every retired word in a text."""
    allowed = STORED.get(file, ())
    for number, line in enumerate(text.splitlines(), 1):
        for match in WORD.finditer(line):
            if match[0] not in allowed:
                yield number, match[0]


def test_no_retired_word_is_used():
    wrong = []
    for path in files():
        file = path.relative_to(ROOT).as_posix()
        wrong += [f"{file}:{n}: '{word}': use {term_of(word)}" for n, word in uses(file, path.read_text("utf-8"))]
    assert not wrong, "\n".join(wrong)


def test_retired_words_are_allowed_only_where_a_file_stores_them():
    for file, words in STORED.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert {word for word in words if word not in text} == set(), file


def test_a_retired_word_is_found_in_prose_and_inside_a_name():
    text = "the goals looked at once\nself.goal_odds = picture\nkeep_blankets = outsight"
    assert list(uses("docs/x.md", text)) == [(1, "looked at"), (2, "odds"), (2, "picture")]
    assert term_of("Pictures") == "image"


# --- identifiers -----------------------------------------------------------------------------------------------------

# participles, pronouns and adverbs that stand in place of what a value is
EMPTY_WORD_LIST = (
    "found known place places kept made wanted asked begun beside aside apart said alike learnt told held drawn shown "
    "taken given meant seen brought sought heard felt way ways far"
)
EMPTY_WORDS = frozenset(EMPTY_WORD_LIST.split())
LIBRARY_NAMES = {"given"}  # of hypothesis
EMPTY_PER_1000_LINES = 1.0


def identifiers(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def is_empty(name):
    """Whether a name is one of the words, or begins with one: `found_lanes`, but not `far_m` nor `way_points`."""
    first = name.split("_")[0]
    return name not in LIBRARY_NAMES and (
        name in EMPTY_WORDS or (first != name and first in EMPTY_WORDS - {"way", "far"})
    )


@pytest.mark.parametrize("folder", ["reflectdrive_ros", "test"])
def test_identifiers_say_what_a_value_is(folder):
    names = [(path.name, name) for path, tree in trees(folder).items() for name in identifiers(tree)]
    empty = [f"{file}: {name}" for file, name in names if is_empty(name)]
    lines = sum(path.read_text("utf-8").count("\n") for path in trees(folder))
    assert 1000.0 * len(empty) / lines <= EMPTY_PER_1000_LINES, empty


def test_a_name_without_meaning_is_reported_wherever_it_stands():
    code = (
        "def kept(places, *, wanted=1):\n    found_at = self.known.far_m\n    return f'{asked}', run(made=way_points)"
    )
    names = [name for name in identifiers(ast.parse(code)) if is_empty(name)]
    assert sorted(names) == ["asked", "found_at", "kept", "known", "made", "places", "wanted"]


# --- one definition per name -----------------------------------------------------------------------------------------

REPEATED_CONSTANTS_MAX = 163


def definitions():
    """Name -> files that define a class, and name -> files that define a constant, at the top of a module."""
    classes, constants = defaultdict(set), defaultdict(set)
    for path, tree in trees().items():
        file = path.relative_to(ROOT).as_posix()
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                classes[statement.name].add(file)
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            names = [each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)]
            for name in names:
                if name.isupper():
                    constants[name].add(file)
    return classes, constants


def test_a_class_has_a_name_of_its_own():
    classes, _ = definitions()
    assert {name: files for name, files in classes.items() if len(files) > 1} == {}


def test_constants_that_share_a_name_become_fewer():
    """A constant of another value has the name of its purpose; lower the number with each that gets one."""
    _, constants = definitions()
    repeated = {name: files for name, files in constants.items() if len(files) > 1}
    assert len(repeated) <= REPEATED_CONSTANTS_MAX, repeated
    assert "STANDING_MPS" not in repeated
