"""librdkafka's settings are translated for kafka-python, the second client library.

Settings that kafka-python does not know are refused.
"""

import logging
import ssl
import subprocess

import pytest

from holdfast.infra.kafka.errors import ClientSettingsInvalid
from holdfast.infra.kafka.inspection.inspection_settings import admin_settings, quiet_library


@pytest.fixture
def certificate(tmp_path):
    key, cert = tmp_path / "own.key", tmp_path / "own.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert]
    subprocess.run([*command, "-days", "2", "-subj", "/CN=own"], check=True, capture_output=True)
    return key, cert


def test_without_settings_it_is_plain_text():
    assert admin_settings({}) == {"security_protocol": "PLAINTEXT"}
    assert admin_settings({"socket.timeout.ms": 5, "client.id": "x"}) == {"security_protocol": "PLAINTEXT"}


@pytest.mark.parametrize("entry", ["sasl.mechanisms", "sasl.mechanism"])
def test_a_user_and_a_password_are_carried_over(entry):
    settings = {entry: "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"}
    assert admin_settings({"security.protocol": "sasl_plaintext", **settings}) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }


def test_certificates_are_checked_unless_that_is_off(certificate):
    _, ca = certificate
    context = admin_settings({"security.protocol": "ssl", "ssl.ca.location": str(ca)})["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    anyhow = {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"}
    assert not admin_settings(anyhow)["ssl_context"].check_hostname
    blind = admin_settings({"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"})["ssl_context"]
    assert blind.verify_mode == ssl.CERT_NONE


def test_an_own_certificate_is_taken_from_files_or_from_text(certificate):
    key, cert = certificate
    files = {"ssl.certificate.location": str(cert), "ssl.key.location": str(key)}
    text = {"ssl.certificate.pem": cert.read_text(), "ssl.key.pem": key.read_text(), "ssl.ca.pem": cert.read_text()}
    for own in (files, text):
        assert isinstance(admin_settings({"security.protocol": "ssl", **own})["ssl_context"], ssl.SSLContext)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"security.protocol": "sasl_ssl", "sasl.mechanisms": "OAUTHBEARER"}, "sasl.mechanisms=OAUTHBEARER"),
        ({"security.protocol": "sasl_ssl"}, "sasl.mechanisms=GSSAPI"),
        ({"ssl.keystore.location": "x.p12"}, "ssl.keystore.location"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/not/there"}, "files of the ssl settings"),
    ],
)
def test_security_that_can_not_be_carried_over_is_refused(settings, named):
    with pytest.raises(ClientSettingsInvalid, match=named):
        admin_settings(settings)


def test_the_library_does_not_log_its_configuration(caplog):
    quiet_library()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("kafka.admin.client").debug("Starting with sasl_plain_password")
    assert caplog.records == []
