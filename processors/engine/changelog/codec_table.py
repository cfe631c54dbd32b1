"""All codecs of stored values, by name, by number, and by the label in meta records."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.processors.engine.changelog.codecs import BYTES, JSON, MSGPACK, Codec
from holdfast.processors.engine.changelog.typed_codec import TYPED

#: The name of the default codec.
DEFAULT = JSON.name
#: Maps the name in ``app.store(codec=...)`` to the codec, for all codecs.
CODECS: Mapping[str, Codec] = {each.name: each for each in (JSON, MSGPACK, TYPED, BYTES)}
#: Maps the byte that stands for a codec in stored values to the codec, for all codecs.
BY_NUMBER: Mapping[int, Codec] = {each.number: each for each in CODECS.values()}
#: The names and versions of the codecs that this version of Holdfast can read, in the form of meta records.
LABELS = frozenset(each.label for each in CODECS.values())
#: The codecs whose payload is neither JSON nor raw bytes.
CODED = tuple(each for each in CODECS.values() if each not in (JSON, BYTES))
