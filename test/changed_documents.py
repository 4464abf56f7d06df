"""Documents with one to three of their fields changed, bytes changed or cut, and what a reader makes of them."""

import copy
import io
import json
import math

import numpy as np
from hypothesis import strategies as st

REMOVED = object()
ODD = [
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 2**64, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, 1e-320, 1e300, -1e300, math.nan, math.inf, -math.inf),
    *("", "a", "3", "\0", "\ud800", "..", "../x", "/dev/zero", "a/b", "a" * 300, "[" * 100, "\x1b[31m"),
    *([], {}, [[]], [{}], {"a": {}}, [0], ["a"], [None], [0.0] * 3, {"": 0}),
]
texts = st.text(max_size=6)
values = st.one_of(
    st.sampled_from(ODD),
    st.integers(),
    st.floats(),
    texts,
    st.lists(st.sampled_from(ODD), max_size=3),
    st.dictionaries(texts, st.sampled_from(ODD), max_size=2),
)


def paths(document, above=()):
    """The path of every value inside a document; of long lists the first entries."""
    inside = document.items() if isinstance(document, dict) else ()
    inside = list(enumerate(document))[:4] if isinstance(document, list) else inside
    for name, value in inside:
        yield (*above, name)
        yield from paths(value, (*above, name))


def with_changes(document, changes):
    document = copy.deepcopy(document)
    for path, value in changes:
        at = document
        try:
            for name in path[:-1]:
                at = at[name]
            if value is REMOVED:
                del at[path[-1]]
            else:
                at[path[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has taken that place away
    return document


def with_field(document, path, value):
    """The document with the value at a path like "rows.0.name" replaced."""
    names = tuple(int(name) if name.isdigit() else name for name in path.split("."))
    return with_changes(document, [(names, value)])


def changed(document):
    """Strategy: the document with one to three values replaced or removed."""
    change = st.tuples(st.sampled_from(list(paths(document))), st.one_of(values, st.just(REMOVED)))
    return st.lists(change, min_size=1, max_size=3).map(lambda changes: with_changes(document, changes))


def torn(content):
    """Strategy: the bytes with a byte changed, cut, or with others in their place."""
    offset = st.integers(0, len(content))
    some = st.one_of(
        st.binary(max_size=4), st.sampled_from([b"[" * 100, b"{" * 100, b'"', b"\0", b"\xff", b"9" * 5000])
    )
    return st.one_of(
        st.builds(lambda at, put, over: content[:at] + put + content[at + over :], offset, some, st.integers(0, 8)),
        offset.map(lambda end: content[:end]),
        st.binary(max_size=60),
    )


def as_bytes(document):
    return json.dumps(document).encode()


def documents(document):
    """Strategy: bytes of a file that should hold the document as JSON."""
    content = as_bytes(document)
    return st.one_of(changed(document).map(as_bytes), torn(content), values.map(as_bytes))


def check_sentence(fault):
    message = str(fault)
    assert message.strip()
    assert "\n" not in message
    assert len(message) < 1000, message


def outcome(how, errors, *arguments):
    """What `how` makes of its input, None where it refuses with one of `errors` and a sentence."""
    try:
        return how(*arguments)
    except errors as fault:
        check_sentence(fault)
    return None


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()
