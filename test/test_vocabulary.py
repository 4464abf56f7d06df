"""The package and its pages use the field's terms: none of the words that those terms replaced comes back."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
    for place in PLACES:
        path = ROOT / place
        yield from ([path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in TEXT))


def term_of(word):
    return next(term for pattern, term in RETIRED.items() if re.fullmatch(pattern, word, re.IGNORECASE))


def uses(file, text):
    """(line number, word) of every retired word in a text."""
    allowed = STORED.get(file, ())
    for number, line in enumerate(text.splitlines(), 1):
        for found in WORD.finditer(line):
            if found[0] not in allowed:
                yield number, found[0]


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
