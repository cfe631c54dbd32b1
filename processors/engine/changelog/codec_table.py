"""All codecs of stored values: by name, by number, and by label (name and version, as meta records contain it)."""

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
#: The labels (name and version, for example ``typed 1``) of the codecs that this version of Holdfast can read. Meta
#: records contain such a label.
LABELS = frozenset(each.label for each in CODECS.values())
#: The codecs whose payload is neither JSON nor raw bytes.
CODED = tuple(each for each in CODECS.values() if each not in (JSON, BYTES))
