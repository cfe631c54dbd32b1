"""The certificate of an erasure: one proof for each place that had, or could have had, a copy of the key.

Invariants:
    - A certificate contains neither the key nor a value. ``mark`` is a keyed hash of the key.
    - A place that could not be read has the outcome ``unknown``; such a certificate never says that the key is erased.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

#: gone: copies were removed, and reading the place again found none. absent: reading the place found no copy.
#: stays: copies stay in the place until ``until``. unknown: the place could not be read completely.
Outcome = Literal["gone", "absent", "stays", "unknown"]
VERSION = 1


class Proof(msgspec.Struct, frozen=True):
    """What an erasure found and did in one place.

    Args:
        kind: The kind of the place, for example ``changelog``.
        name: The store, topic, table or folder.
        outcome: Whether copies are left.
        how: How the outcome was found, as a sentence.
        at: When it was found, ISO 8601 in UTC.
        until: With ``stays``: until when copies stay, or what ends it.
    """

    kind: str
    name: str
    outcome: Outcome
    how: str
    at: str
    until: str = ""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one erasure.

    Args:
        processor: The processor whose key was erased.
        mark: The keyed hash of the key.
        begun_at: When the erasure began, ISO 8601 in UTC.
        finished_at: When the certificate was completed; empty before.
        ends: Changelog topic -> partition -> offset after the deletes. Later records are of later messages.
        proofs: One for each place.
    """

    processor: str
    mark: str
    begun_at: str
    finished_at: str = ""
    ends: dict[str, dict[int, int]] = {}
    proofs: tuple[Proof, ...] = ()
    version: int = VERSION

    @property
    def proven(self) -> bool:
        """Whether the erasure ended, and every place was read to its end."""
        return bool(self.finished_at) and all(each.outcome != "unknown" for each in self.proofs)

    @property
    def sentence(self) -> str:
        """The result as one sentence."""
        if not self.finished_at:
            return f"The erasure that began at {self.begun_at} is not complete."
        unknown = [each for each in self.proofs if each.outcome == "unknown"]
        if unknown:
            return f"Not proven: {_places(unknown)} could not be read, so a copy of the key may be left."
        stays = [each for each in self.proofs if each.outcome == "stays"]
        read = [each for each in self.proofs if each.outcome != "stays"]
        left = f" Messages may stay in {_places(stays)} for the time that is named." if stays else ""
        return f"Erased: no copy of the key is left in {_places(read)}.{left}"

    def with_proof(self, proof: Proof) -> Certificate:
        """The certificate with this proof; it replaces an earlier proof of the same place."""
        others = tuple(each for each in self.proofs if (each.kind, each.name) != (proof.kind, proof.name))
        return msgspec.structs.replace(self, proofs=(*others, proof))

    def encode(self) -> str:
        """The certificate as JSON text."""
        return msgspec.json.encode(self).decode()


class ErasureFacts(msgspec.Struct, frozen=True):
    """One erasure, as plans need it.

    Args:
        mark: The keyed hash of the key.
        begun_at: When the erasure began, seconds since 1970.
        finished: Whether its certificate is complete.
        proven: Whether the certificate proves that every copy is gone.
    """

    mark: str
    begun_at: float
    finished: bool
    proven: bool


class FactsOfErasures(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a processor's facts that is about erased keys.

    Args:
        erased: The erasures of the processor's keys; only for verbs that could bring an erased key back.
        mark: The keyed hash of the request's key; only for ``erase``.
        erased_lines: The numbers of the lines of an export file that have an erased key.
    """

    erased: tuple[ErasureFacts, ...] = ()
    mark: str = ""
    erased_lines: tuple[int, ...] = ()


class ErasureSource(Protocol):
    """Reads the facts about erased keys; changes nothing."""

    def erasures(self, processor: str) -> tuple[ErasureFacts, ...]:
        """The erasures of the processor's keys, oldest first."""

    def mark(self, processor: str, key: str) -> str:
        """The keyed hash of a message key, with which erasures name it."""

    def erased_lines(self, processor: str, path: str) -> tuple[int, ...]:
        """The numbers of the lines of an export file that have a key of the processor that was erased later."""


def decode(text: str) -> Certificate:
    """Decodes a certificate from the JSON text in Holdfast's registry."""
    return msgspec.json.decode(text, type=Certificate)


def _places(proofs: Sequence[Proof]) -> str:
    return f"{len(proofs)} place{'' if len(proofs) == 1 else 's'}"


def in_text(certificate: Certificate) -> str:
    """The certificate as lines of text for a terminal."""
    lines = [
        f"Erasure of key {certificate.mark[:12]} of {certificate.processor}, begun at {certificate.begun_at}.",
        certificate.sentence,
    ]
    for each in certificate.proofs:
        until = f" Until: {each.until}." if each.until else ""
        lines.append(f"  {each.outcome:7}  {each.kind} {each.name}, {each.at}: {each.how}{until}")
    return "\n".join(lines)


def mark_of(secret: bytes, processor: str, key: bytes) -> str:
    """The keyed hash of a message key of a processor, as 64 hexadecimal digits."""
    return hmac.new(secret, processor.encode() + b"\0" + key, hashlib.sha256).hexdigest()
