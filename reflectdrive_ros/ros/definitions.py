"""Definitions of messages, as they are installed, as they come with this package, or as a bag has them.

`definitions.msg` has those of Autoware and ours that a replay reads and writes; rosbags has those of ROS 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rosbags.interfaces import MessageDefinition, MessageDefinitionFormat, Nodetype
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

from . import cdr

SHIPPED = Path(__file__).with_name("definitions.msg")
ITEMS_MAX = 10_000_000  # structures and texts of one message
PART = "=" * 80 + "\n"  # between the types of one text, as rosbag2 joins them


@cache
def shipped() -> dict[str, Any]:
    """rosbags' descriptions by type name."""
    types = dict(get_typestore(Stores.ROS2_JAZZY).fielddefs)
    for part in SHIPPED.read_text(encoding="utf-8").split("MSG: ")[1:]:
        name, _, text = part.partition("\n")
        types |= get_types_from_msg(text, name)
    return types


@cache
def _description(type_name: str) -> Any:
    """rosbags' description of one type: of the installed package, or else as shipped. Raises LookupError."""
    package, _, name = type_name.partition("/msg/")
    try:
        from ament_index_python.packages import get_package_share_directory

        text = (Path(get_package_share_directory(package)) / "msg" / f"{name}.msg").read_text(encoding="utf-8")
    except (ImportError, LookupError, OSError):
        return shipped()[type_name]
    return get_types_from_msg(text, type_name)[type_name]


def _types_used(fields: Any) -> list[str]:
    """Names of the message types that appear in rosbags' field descriptions, inside arrays and sequences too."""
    if isinstance(fields, str):
        return [fields] if "/msg/" in fields else []
    if isinstance(fields, (list, tuple)):
        return [name for entry in fields for name in _types_used(entry)]
    return []


@cache
def definition(type_name: str) -> tuple[str, str]:
    """The full text of a message type as rosbag2 stores it, and its RIHS01 hash. Raises LookupError where it is neither
    installed nor shipped."""
    pending, types = [type_name], {}
    while pending:
        name = pending.pop()
        if name not in types:
            types[name] = _description(name)
            pending += _types_used(types[name][1])
    store = get_typestore(Stores.EMPTY)
    store.register({name: fields for name, fields in types.items() if name not in store.fielddefs})
    return store.generate_msgdef(type_name, ros_version=2)[0], store.hash_rihs01(type_name)


def parse(text: MessageDefinition, type_name: str) -> dict[str, Any]:
    """rosbags' descriptions by type name, of the definition of one type in a bag. Raises TypesysError, ValueError."""
    if text.format is MessageDefinitionFormat.MSG:
        return dict(get_types_from_msg(text.data, type_name))
    parts = [part.partition("\n")[2] for part in text.data.split(PART)[1:]] or [text.data]
    return {name: fields for part in parts for name, fields in get_types_from_idl(part).items()}


def read(content: bytes, type_name: str) -> Any:
    """A serialised message by the shipped definition. Raises BadMessage for bytes that are no such message."""
    return cdr.read(content, layout(type_name), ITEMS_MAX)


def layout(type_name: str, types: Mapping[str, Any] | None = None) -> cdr.StructLayout:
    """The layout of a type by rosbags' descriptions, those that are missing as shipped.

    Raises LookupError where a type is described nowhere.
    """
    return _struct(type_name, {**shipped(), **(types or {})}, {})


def _struct(type_name: str, types: Mapping[str, Any], finished: dict[str, cdr.StructLayout]) -> cdr.StructLayout:
    if type_name not in finished:
        fields = types[type_name][1] or [("structure_needs_at_least_one_member", (Nodetype.BASE, ("uint8", 0)))]
        finished[type_name] = cdr.StructLayout(
            type_name, {name: _part(description, types, finished) for name, description in fields}
        )
    return finished[type_name]


def _part(description: Any, types: Mapping[str, Any], finished: dict[str, cdr.StructLayout]) -> cdr.Layout:
    node, content = description
    if node is Nodetype.NAME:
        return _struct(content, types, finished)
    if node is Nodetype.BASE:
        return cdr.StringLayout() if content[0] == "string" else cdr.NumberLayout(content[0])
    element, count = content
    return cdr.SequenceLayout(_part(element, types, finished), count if node is Nodetype.ARRAY else None)


def lacking(part: cdr.Layout, shipped_part: cdr.Layout | None = None) -> str:
    """The path of a field that the shipped definition has and a layout lacks, or has as something else; empty if there
    is none."""
    if shipped_part is None:
        assert isinstance(part, cdr.StructLayout)
        if part.name not in shipped():
            return ""
        shipped_part = layout(part.name)
    if isinstance(part, cdr.SequenceLayout) and isinstance(shipped_part, cdr.SequenceLayout):
        return "-" if part.count != shipped_part.count else lacking(part.element, shipped_part.element)
    if isinstance(part, cdr.StructLayout) and isinstance(shipped_part, cdr.StructLayout):
        for name, field in shipped_part.fields.items():
            inside = lacking(part.fields[name], field) if name in part.fields else "-"
            if inside:
                return f"{name}.{inside}".partition(".-")[0]
        return ""
    return "" if type(part) is type(shipped_part) else "-"
