"""The base of errors that the user of a command can correct, and their text as a terminal, log or diagnostic takes it.

Names come from users, files and messages: they may have a megabyte, control characters and line breaks.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

NAME_CHARACTERS = 200  # of a name in a message
WORD_CHARACTERS = 500  # a longer word is a name that was not cut
LINE_CHARACTERS, TEXT_CHARACTERS = 4_000, 40_000
LONG_WORD = re.compile(rf"\S{{{WORD_CHARACTERS + 1},}}")


class UserError(Exception):
    """An input of the user cannot be used. The message is one sentence: what is wrong and what to do."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose messages are printable: they repeat what was given."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(printable(message) if message else message, file)


def printable_name(text: str, most: int = NAME_CHARACTERS) -> str:
    """A name or sentence as one line: control characters and lone surrogates escaped, without its middle where it has
    more than `most` characters.
    """
    if len(text) <= most and text.isprintable():
        return text
    if len(text) > 2 * most:  # escaping makes nothing shorter
        text = f"{text[:most]}{text[-most:]}"
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-(most // 2) :]}"


def printable_line(text: str) -> str:
    """A sentence of a log or a diagnostic as one line: as `printable_name`, but only words and lines are cut that are
    longer than any that this package writes.
    """
    if len(text) <= WORD_CHARACTERS and text.isprintable():
        return text
    if len(text) > TEXT_CHARACTERS:
        text = f"{text[: TEXT_CHARACTERS // 2]}...{text[-TEXT_CHARACTERS // 2 :]}"
    return printable_name(LONG_WORD.sub(lambda word: printable_name(word[0]), text), LINE_CHARACTERS)


def printable(text: str) -> str:
    """Text for a terminal: each line as `printable_line`; line breaks and tabs stay."""
    if text.isprintable():
        return printable_line(text)
    if len(text) > TEXT_CHARACTERS:
        text = f"{text[: TEXT_CHARACTERS // 2]}...{text[-TEXT_CHARACTERS // 2 :]}"
    return "\n".join("\t".join(map(printable_line, line.split("\t"))) for line in text.split("\n"))
