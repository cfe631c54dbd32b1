"""Bounds for Avro, so that no message ends a worker or fills its memory.

fastavro reads and writes in C without a bound of its own. With three kinds of schemas, a small message can do harm:

- A recursive schema: each level takes a part of the C stack, and the process ends when the stack is full.
- An array of items without bytes, such as ``null``: six bytes declare 2**32 items.
- A ``decimal`` of type ``bytes``: the time of its conversion grows with the square of its length.
- An array of fixed-size items, such as ``double``, that the reader's schema drops: fastavro skips the items that an
  array declares, also behind the end of the message.

Schemas of other kinds need no check: their depth is fixed, and each item takes bytes of the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.infra.schemas.errors import NestedTooDeeply

#: The greatest depth of records, arrays and maps inside each other. fastavro needs up to 3 kB of stack for each level,
#: and threads may have only 8 MB.
LEVELS_MAX = 1_000
#: The greatest number of array items without bytes in a message, such as ``null``.
EMPTY_ITEMS_MAX = 1_000_000
#: The greatest length of a decimal number in bytes: about 24,000 digits, which are converted in 0.03 s.
DECIMAL_BYTES_MAX = 10_000
#: The greatest length of Avro's numbers in bytes: 64 bits, of which each byte has seven.
_NUMBER_BYTES_MAX = 10
_FIXED_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_RECORDS = ("record", "error", "request")

#: A function that raises ValueError if the payload of a message goes beyond a bound. The second argument is the
#: position at which the payload begins.
PayloadCheck = Callable[[bytes, int], None]


class _Broken(ValueError):
    """The bytes end inside a value, or they are no Avro of the schema."""


@dataclass(slots=True, eq=False)
class _Node:
    """A part of a schema: how its values are encoded."""

    #: ``fixed`` (always ``size`` bytes), ``number``, ``text``, ``decimal``, ``record``, ``union``, ``array``, ``map``.
    kind: str
    size: int = 0
    #: Fields of a record, branches of a union; the one part of an array or a map is its item.
    parts: list[_Node] = field(default_factory=list)


@dataclass(slots=True)
class _Facts:
    """What a schema allows, and its form for the check of payloads."""

    named: dict[str, _Node] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    containers: int = 0
    is_recursive: bool = False
    has_decimals: bool = False
    arrays: list[_Node] = field(default_factory=list)
    #: Names of the fields that the reader's schema has; None if messages are read as they were written.
    kept: frozenset[str] | None = None
    #: Fields that the reader's schema does not have in any record.
    dropped: list[_Node] = field(default_factory=list)

    def node(self, schema: Any, definitions: Mapping[str, Any]) -> _Node:
        """Converts a schema that fastavro has parsed. ``definitions`` has the schemas that it refers to by name."""
        if isinstance(schema, list):
            return _Node("union", parts=[self.node(each, definitions) for each in schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in _FIXED_SIZES:
            return _Node("fixed", _FIXED_SIZES[kind])
        if kind == "bytes" and isinstance(schema, dict) and schema.get("logicalType") == "decimal":
            self.has_decimals = True
            return _Node("decimal")
        if kind in ("bytes", "string"):
            return _Node("text")
        if kind in ("int", "long"):
            return _Node("number")
        if kind in ("array", "map"):
            return self._of_items(kind, schema["items" if kind == "array" else "values"], definitions)
        if kind in _RECORDS or kind in ("fixed", "enum"):
            return self._of_name(kind, schema, definitions)
        self.is_recursive = self.is_recursive or kind in self.open
        if kind not in self.named:
            return self.node(definitions[kind], definitions)
        return self.named[kind]

    def _of_items(self, kind: str, items: Any, definitions: Mapping[str, Any]) -> _Node:
        self.containers += 1
        made = _Node(kind, parts=[self.node(items, definitions)])
        if kind == "array":
            self.arrays.append(made)
        return made

    def _of_name(self, kind: str, schema: dict[str, Any], definitions: Mapping[str, Any]) -> _Node:
        name = schema["name"]
        if kind not in _RECORDS:
            self.named[name] = _Node("number") if kind == "enum" else _Node("fixed", schema["size"])
            return self.named[name]
        self.containers += 1
        made = self.named[name] = _Node("record")
        self.open.add(name)
        for each in schema["fields"]:
            made.parts.append(self.node(each["type"], definitions))
            if self.kept is not None and each["name"] not in self.kept:
                self.dropped.append(made.parts[-1])
        self.open.discard(name)
        return made


def _has_no_bytes(node: _Node, inside: tuple[_Node, ...] = ()) -> bool:
    """Whether all values of a schema are encoded without a byte, such as ``null`` and records without fields."""
    if node.kind == "record":
        return node not in inside and all(_has_no_bytes(part, (*inside, node)) for part in node.parts)
    return node.kind == "fixed" and node.size == 0


def _has_fixed_size(node: _Node, inside: tuple[_Node, ...] = ()) -> bool:
    """Whether all values of a schema have the same number of bytes, so that fastavro skips them unread."""
    if node.kind == "record":
        return node not in inside and all(_has_fixed_size(part, (*inside, node)) for part in node.parts)
    return node.kind == "fixed"


def _skips_unread(dropped: list[_Node]) -> bool:
    """Whether dropped fields contain an array whose items fastavro skips unread."""
    todo, seen = list(dropped), set[int]()
    while todo:
        node = todo.pop()
        if id(node) not in seen:
            seen.add(id(node))
            todo.extend(node.parts)
            if node.kind == "array" and _has_fixed_size(node.parts[0]):
                return True
    return False


def field_names(*schemas: Any) -> frozenset[str]:
    """The names and aliases of all fields in schemas."""
    found, todo = set[str](), list(schemas)
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            for each in part.get("fields") or ():
                found.update((each["name"], *each.get("aliases", ())))
            todo.extend(part.values())
        elif isinstance(part, list):
            todo.extend(part)
    return frozenset(found)


def _is_endless(node: _Node, inside: set[int]) -> bool:
    """Whether a record contains itself without a union, an array or a map between: no bytes can end such a value."""
    if node.kind != "record":
        return False
    if id(node) in inside:
        return True
    inside.add(id(node))
    found = any(_is_endless(part, inside) for part in node.parts)
    inside.discard(id(node))
    return found


def payload_check(
    schema: Any, definitions: Mapping[str, Any] | None = None, kept: frozenset[str] | None = None
) -> PayloadCheck | None:
    """Returns the check of payloads that a schema needs; None if no payload of the schema can do harm.

    Args:
        schema: The schema with which messages are written, as fastavro has parsed it.
        definitions: The parsed schemas that ``schema`` refers to by name and does not contain.
        kept: The names of the fields in the reader's schema; None if messages are read as they were written.
    """
    facts = _Facts(kept=kept)
    root = facts.node(schema, definitions or {})
    empty = {id(each) for each in facts.arrays if _has_no_bytes(each.parts[0])}
    skips = _skips_unread(facts.dropped)
    if not (facts.is_recursive or facts.has_decimals or empty or skips):
        return None
    # A payload of this length or less stays within the bounds, whatever its bytes are.
    harmless = DECIMAL_BYTES_MAX if facts.has_decimals else EMPTY_ITEMS_MAX
    if facts.is_recursive:
        endless = any(_is_endless(each, set()) for each in facts.named.values())
        harmless = -1 if endless else min(harmless, LEVELS_MAX // facts.containers - 1)
    if empty or skips:
        harmless = -1
    scan = _Scan(root, empty)

    def check(raw: bytes, start: int) -> None:
        if len(raw) - start > harmless:
            scan(raw, start)

    return check


class _Scan:
    """Walks through a payload as fastavro would, without a value and without recursion."""

    def __init__(self, root: _Node, empty: set[int]) -> None:
        self._root, self._empty = root, empty

    def __call__(self, raw: bytes, at: int) -> None:
        """Raises ValueError for a payload beyond a bound, or one that is no Avro of the schema."""
        try:
            self._walk(raw, at)
        except IndexError:
            raise _Broken("the bytes end too early, or name a part of a union that there is not") from None

    def _walk(self, raw: bytes, at: int) -> None:
        # Entries are (node, depth); for an array or a map that has begun also (items left, end of the block or -1).
        todo: list[tuple[_Node, int, int, int]] = [(self._root, 0, -1, -1)]
        items = 0
        while todo:
            node, depth, left, end = todo.pop()
            kind = node.kind
            if kind == "number":
                while raw[at] & 0x80:
                    at += 1
                at += 1
            elif kind in ("text", "decimal"):
                at = self._after_text(raw, at, kind)
            elif kind == "fixed":
                at = _within(raw, at + node.size)
            elif kind == "union":
                branch, at = _number(raw, at)
                todo.append((node.parts[branch], depth, -1, -1))
            elif depth >= LEVELS_MAX:
                raise ValueError(f"it is nested more than {LEVELS_MAX:,} deep")
            elif kind == "record":
                todo.extend((part, depth + 1, -1, -1) for part in reversed(node.parts))
            else:
                if left <= 0:
                    left, end, at = _next_block(raw, at, end if left == 0 else -1)
                    if left == 0:
                        continue
                    if id(node) in self._empty:
                        items, left = items + left, 1
                        if items > EMPTY_ITEMS_MAX:
                            raise ValueError(f"its arrays have more than {EMPTY_ITEMS_MAX:,} items without bytes")
                if kind == "map":
                    at = self._after_text(raw, at, "text")
                todo.append((node, depth, left - 1, end))
                todo.append((node.parts[0], depth + 1, -1, -1))

    @staticmethod
    def _after_text(raw: bytes, at: int, kind: str) -> int:
        size, at = _number(raw, at)
        if size < 0:
            raise _Broken(f"a text has the length {size}")
        if kind == "decimal" and size > DECIMAL_BYTES_MAX:
            raise ValueError(f"a decimal has {size:,} bytes, expected at most {DECIMAL_BYTES_MAX:,}")
        return _within(raw, at + size)


def _within(raw: bytes, at: int) -> int:
    if at > len(raw):
        raise IndexError
    return at


def _number(raw: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position behind it. fastavro overflows silently beyond ten bytes."""
    byte = raw[at]
    number, shift, at = byte & 0x7F, 7, at + 1
    while byte & 0x80:
        if shift == 7 * _NUMBER_BYTES_MAX:
            raise _Broken(f"a number has more than {_NUMBER_BYTES_MAX} bytes")
        byte = raw[at]
        number |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
    number &= (1 << 64) - 1
    return (number >> 1) ^ -(number & 1), at


def _next_block(raw: bytes, at: int, end: int) -> tuple[int, int, int]:
    """The number of items in the next block of an array or a map, where the block ends if it says so, and the position.

    A block with a wrong length is refused: fastavro reads its items, but skips it by its length, and so would read
    something else than what was checked here.
    """
    if end not in (-1, at):
        raise _Broken("a block of an array or a map has another length than it says")
    count, at = _number(raw, at)
    if count >= 0:
        return count, -1, at
    size, at = _number(raw, at)
    return -count, at + size, at


def is_recursive(schema: Any, definitions: Mapping[str, Any] | None = None) -> bool:
    """Whether values of a schema can contain values of the same schema. The arguments are those of `payload_check`."""
    facts = _Facts()
    facts.node(schema, definitions or {})
    return facts.is_recursive


def check_depth(value: Any) -> None:
    """Raises NestedTooDeeply if objects and lists of a value are nested more than 1,000 deep, or contain themselves."""
    todo = [(value, 0)]
    while todo:
        part, depth = todo.pop()
        if isinstance(part, Mapping):
            inner: Sequence[Any] = list(part.values())
        elif isinstance(part, (list, tuple)):
            inner = part
        else:
            continue
        if depth >= LEVELS_MAX:
            raise NestedTooDeeply(f"it is nested more than {LEVELS_MAX:,} deep")
        todo.extend((each, depth + 1) for each in inner)
