"""librdkafka's security settings are translated for Spark's Kafka client.

A setting that cannot be translated is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.infra.kafka.clients.java_settings import java_settings
from holdfast.infra.kafka.errors import ClientSettingsInvalid


def test_users_passwords_and_certificates_are_translated(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("the authority")
    told = java_settings(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": 'a "quoted" \\ one',
            "ssl.ca.location": str(tmp_path / "ca.crt"),
            "ssl.certificate.pem": "mine",
            "ssl.key.pem": "my key",
            "ssl.key.password": "its password",
            "ssl.endpoint.identification.algorithm": "none",
            "enable.ssl.certificate.verification": True,
            "client.id": "x",
        }
    )
    assert told == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="a \\"quoted\\" \\\\ one";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "the authority",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "mine",
        "ssl.keystore.key": "my key",
        "ssl.key.password": "its password",
        "ssl.endpoint.identification.algorithm": "",
        "client.id": "x",
    }


def test_without_security_nothing_is_added() -> None:
    assert java_settings({"client.id": "x", "fetch.max.bytes": 1}) == {"client.id": "x", "fetch.max.bytes": "1"}


@pytest.mark.parametrize(
    "config",
    [
        {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"},
        {"ssl.crl.location": "/crl"},
        {"enable.ssl.certificate.verification": "false"},
        {"ssl.ca.location": "/there/is/no/such/file"},
    ],
)
def test_what_has_no_counterpart_is_refused(config: dict[str, str]) -> None:
    with pytest.raises(ClientSettingsInvalid):
        java_settings(config)
