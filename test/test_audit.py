"""The audit: what nobody chose is named, and an auditor that cannot see is not believed."""

import importlib.machinery
import importlib.util
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.meta

SCRIPT = Path(__file__).parents[1] / "tools" / "audit"


@pytest.fixture(scope="module")
def audit():
    loader = importlib.machinery.SourceFileLoader("audit", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("audit", loader))
    loader.exec_module(module)
    return module


def test_what_is_installed_here_was_chosen(audit):
    there = audit.installed(audit.of_environment())
    assert {"numpy", "torch", "rosbags"} <= set(there)
    assert audit.complaints(there, audit.chosen()) == []


def test_another_version_and_an_unasked_one_are_named(audit):
    wanted = audit.chosen()
    there = {"numpy": "1.0", "torch": f"{wanted['torch']}+cpu", "left-pad": "1.3.0", "networkx": "3.0"}
    first, second = audit.complaints(there, wanted)
    assert first == "left-pad 1.3.0 is installed, but nothing asks for it: add it to tools/requirements.in"
    assert second.startswith(f"numpy is 1.0, chosen is {wanted['numpy']}")


def answers(audit, monkeypatch, say):
    """pip-audit's answers, by whether it was asked for what is known to be bad."""
    asked = []

    def run(words, **_):
        pins = Path(words[-1]).read_text().split()
        asked.append(pins)
        return subprocess.CompletedProcess(words, 0, say(pins), "")

    monkeypatch.setattr(audit.subprocess, "run", run)
    return asked


def test_a_database_that_does_not_know_the_worst_is_not_asked_for_the_rest(audit, monkeypatch, capsys):
    asked = answers(audit, monkeypatch, lambda pins: '{"dependencies": [{"name": "jinja2", "skip_reason": "unknown"}]}')
    assert audit.main() == 0
    assert asked == [[audit.KNOWN_TO_BE_BAD]] * len(audit.DATABASES)
    assert "no database of known vulnerabilities can be reached" in capsys.readouterr().out


def test_what_is_known_to_be_vulnerable_fails(audit, monkeypatch, capsys):
    row = '{"name": "%s", "version": "%s", "vulns": [{"id": "CVE-1"}]}'
    answers(audit, monkeypatch, lambda pins: '{"dependencies": [%s]}' % (row % tuple(pins[0].split("=="))))
    assert audit.main() == 1
    assert "is known for CVE-1" in capsys.readouterr().err
