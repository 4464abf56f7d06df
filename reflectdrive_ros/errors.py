"""The base of errors that the user of a command can correct."""


class UserError(Exception):
    """An input of the user cannot be used. The message is one sentence: what is wrong and what to do."""
