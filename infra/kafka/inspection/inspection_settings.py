"""Translates librdkafka's settings into arguments of kafka-python's admin client.

Invariants:
    - A security setting that kafka-python does not support is refused, never ignored.
    - A certificate or key given as text is written to a private temporary file, only while the TLS library reads it.
"""

from __future__ import annotations

import logging
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.infra.kafka.errors import ClientSettingsInvalid
from holdfast.infra.kafka.records import ClientConfig

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_ABOUT_SECURITY = ("sasl.", "ssl.", "security.", "enable.ssl.", "https.")
_CARRIED = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)


def quiet_library() -> None:
    """Let kafka-python log only errors, because at lower levels it logs its configuration, which contains secrets."""
    for name in ("kafka", "kafka.admin", "kafka.net"):
        logger = logging.getLogger(name)
        if logger.level < logging.WARNING:
            logger.setLevel(logging.ERROR)


def admin_settings(config: ClientConfig) -> dict[str, Any]:
    """The arguments of ``KafkaAdminClient`` that correspond to these librdkafka settings.

    Raises:
        ClientSettingsInvalid: A security setting has no corresponding argument, or its file can't be read.
    """
    text = {name: str(value) for name, value in config.items()}
    for name in text:
        if name.startswith(_ABOUT_SECURITY) and name not in _CARRIED:
            raise _not_carried(name)
    protocol = text.get("security.protocol", "plaintext").upper()
    settings: dict[str, Any] = {"security_protocol": protocol}
    if protocol.startswith("SASL"):
        mechanism = text.get("sasl.mechanisms", text.get("sasl.mechanism", "GSSAPI")).upper()
        if mechanism not in _MECHANISMS:
            raise _not_carried(f"sasl.mechanisms={mechanism}")
        settings |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": text.get("sasl.username", ""),
            "sasl_plain_password": text.get("sasl.password", ""),
        }
    if protocol.endswith("SSL"):
        settings["ssl_context"] = _context(text)
    return settings


def _context(text: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=text.get("ssl.ca.location"), cadata=text.get("ssl.ca.pem"))
        _add_own_certificate(context, text)
    except (OSError, ssl.SSLError) as failure:
        raise ClientSettingsInvalid(
            f"The files of the ssl settings can't be read: {failure.strerror or type(failure).__name__}.",
            action="Correct `ssl.ca.location`, `ssl.certificate.location`, `ssl.key.location` and `ssl.key.password`.",
        ) from failure
    if text.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if text.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _add_own_certificate(context: ssl.SSLContext, text: Mapping[str, str]) -> None:
    password = text.get("ssl.key.password")
    if "ssl.certificate.pem" in text:
        # Python's TLS library reads a key only from a file, so the key is written to a private folder (mode 0700).
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            path = Path(folder) / "own.pem"
            path.touch(0o600)
            path.write_text(text["ssl.certificate.pem"] + "\n" + text.get("ssl.key.pem", ""))
            context.load_cert_chain(path, None, password)
    elif "ssl.certificate.location" in text:
        context.load_cert_chain(text["ssl.certificate.location"], text.get("ssl.key.location"), password)


def _not_carried(name: str) -> ClientSettingsInvalid:
    return ClientSettingsInvalid(
        f"`{name}` has no counterpart in the client that reads sizes and open transactions; both stay unknown.",
        action="Use `kafka-log-dirs.sh` and `kafka-transactions.sh` to read them.",
        setting=name,
    )
