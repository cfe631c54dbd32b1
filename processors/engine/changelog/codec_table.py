"""All codecs of stored values, by name, by number, and by the label in meta records."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.processors.engine.changelog.codecs import BYTES, JSON, MSGPACK, Codec
from holdfast.processors.engine.changelog.typed_codec import TYPED

#: The name of the default codec.
DEFAULT = JSON.name
#: All codecs, by the name that ``app.store(codec=...)`` accepts.
CODECS: Mapping[str, Codec] = {each.name: each for each in (JSON, MSGPACK, TYPED, BYTES)}
#: All codecs, by the byte that stands for a codec in stored values.
BY_NUMBER: Mapping[int, Codec] = {each.number: each for each in CODECS.values()}
#: The names and versions of the codecs that this version of Holdfast can read, for example ``typed 1``, as in meta
#: records.
LABELS = frozenset(each.label for each in CODECS.values())
#: The codecs whose payload is neither JSON nor raw bytes.
CODED = tuple(each for each in CODECS.values() if each not in (JSON, BYTES))
