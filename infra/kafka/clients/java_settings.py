"""Translates librdkafka's settings into settings of Kafka's Java client, with which Spark reads changelogs.

Invariants:
    - A security setting without a corresponding Java setting is refused, never ignored.
    - Certificates and keys are passed as text, because executors on other machines do not have this machine's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.infra.kafka.errors import ClientSettingsInvalid
from holdfast.infra.kafka.records import ClientConfig

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SAME = frozenset({"security.protocol", "ssl.key.password"})
#: librdkafka's setting -> the corresponding setting of the Java client, and whether librdkafka's value is a file path.
_PEM = {
    "ssl.ca.pem": ("ssl.truststore.certificates", False),
    "ssl.ca.location": ("ssl.truststore.certificates", True),
    "ssl.certificate.pem": ("ssl.keystore.certificate.chain", False),
    "ssl.certificate.location": ("ssl.keystore.certificate.chain", True),
    "ssl.key.pem": ("ssl.keystore.key", False),
    "ssl.key.location": ("ssl.keystore.key", True),
}
_SASL = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})
_ABOUT_SECURITY = ("sasl.", "ssl.", "security.", "enable.ssl.", "https.")


def java_settings(config: ClientConfig) -> dict[str, str]:
    """The Java client's settings that correspond to these librdkafka settings.

    Settings that are not about security keep their names and values.

    Raises:
        ClientSettingsInvalid: A security setting has no corresponding Java setting, or its file can't be read.
    """
    text = {name: str(value) for name, value in config.items()}
    settings: dict[str, str] = {}
    for name, value in text.items():
        if name in _PEM:
            ours, is_file = _PEM[name]
            settings[ours] = _content(name, value) if is_file else value
            settings["ssl.truststore.type" if "truststore" in ours else "ssl.keystore.type"] = "PEM"
        elif name == "ssl.endpoint.identification.algorithm":
            settings[name] = "" if value.lower() == "none" else value
        elif name in _SASL or (name == "enable.ssl.certificate.verification" and value.lower() == "true"):
            continue
        elif name.startswith(_ABOUT_SECURITY) and name not in _SAME:
            raise _not_carried(name)
        else:
            settings[name] = value.upper() if name == "security.protocol" else value
    if settings.get("security.protocol", "").startswith("SASL"):
        settings |= _login(text)
    return settings


def _login(text: Mapping[str, str]) -> dict[str, str]:
    mechanism = text.get("sasl.mechanisms", text.get("sasl.mechanism", "GSSAPI")).upper()
    if mechanism not in _MODULES:
        raise _not_carried(f"sasl.mechanisms={mechanism}")
    who = f'username="{_quoted(text.get("sasl.username", ""))}" password="{_quoted(text.get("sasl.password", ""))}"'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{_MODULES[mechanism]} required {who};"}


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as failure:
        raise ClientSettingsInvalid(
            f"The file of `{name}` can't be read: {getattr(failure, 'strerror', None) or type(failure).__name__}.",
            action=f"Correct `{name}` in `HOLDFAST_KAFKA__CLIENT_CONFIG`: a file in PEM format.",
            setting=name,
        ) from failure


def _not_carried(name: str) -> ClientSettingsInvalid:
    return ClientSettingsInvalid(
        f"`{name}` has no counterpart in the client with which Spark reads changelogs.",
        action="Use PLAIN or SCRAM with certificates in PEM format for snapshots.",
        setting=name,
    )
