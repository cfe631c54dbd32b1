"""A broker with TLS, SASL passwords and ACLs. A user may do only what an ACL allows."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from holdfast.infra.kafka.embedded.broker import BrokerAddress
from holdfast.infra.setup.java import BRIEF, Java
from holdfast.infra.waiting import Deadline
from tests.parts.brokers import TrackedBroker
from tests.parts.certificates import Certificates

ADMIN = ("admin", "admin-secret")
MECHANISM = "SCRAM-SHA-512"
_PARTS = ("restype", "name", "resource_pattern_type", "principal", "host", "operation", "permission_type")


class SecuredBroker(TrackedBroker):
    """One KRaft node with SASL_SSL, SCRAM and the standard authorizer. User ``admin`` is a superuser."""

    def __init__(self, folder: Path, java: Java, jars: tuple[Path, ...]) -> None:
        super().__init__(folder, heap_mb=384, java=java, jars=jars, options=[BRIEF])
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self._pem = folder / "ca.crt", folder / "broker.pem"
        self._make_certificates()
        self.bootstrap = ""

    def config(self, user: str, password: str) -> dict[str, str]:
        """The librdkafka settings with which this user connects."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": MECHANISM,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.ca),
        }

    def add_user(self, user: str, password: str) -> dict[str, str]:
        """Create a user without any rights. Returns the client settings of the user."""
        credential = UserScramCredentialUpsertion(
            user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
        )
        admin = self._admin()
        for future in admin.alter_user_scram_credentials([credential]).values():
            future.result(30)
        return self.config(user, password)

    def allow(self, user: str, operation: str, kind: str, name: str, *, prefixed: bool = False) -> None:
        """Add an ACL, as `kafka-acls.sh --add --allow-principal` does, and wait until the broker applies it."""
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        kinds = {
            "topic": ResourceType.TOPIC,
            "group": ResourceType.GROUP,
            "transactional-id": ResourceType.TRANSACTIONAL_ID,
            "cluster": ResourceType.BROKER,
        }
        binding = AclBinding(
            kinds[kind],
            "kafka-cluster" if kind == "cluster" else name,
            pattern,
            f"User:{user}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        admin = self._admin()
        for future in admin.create_acls([binding]).values():
            future.result(30)
        wanted = AclBindingFilter(*(getattr(binding, name) for name in _PARTS))
        deadline = time.monotonic() + 60
        # The broker receives the ACL from the controller a moment later.
        while not admin.describe_acls(wanted).result(30):
            assert time.monotonic() < deadline, f"the rule did not come to hold: {binding}"
            time.sleep(0.02)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, **self.config(*ADMIN), "log_level": 0})

    def _make_certificates(self) -> None:
        made = Certificates(self.ca.parent)
        assert made.ca == self.ca
        self._pem.write_text(made.key.read_text() + made.certificate.read_text())

    def _configure(self, port: int, controller_port: int, deadline: Deadline) -> None:
        jaas = "sasl.jaas.config"
        plain, scram = (
            f"org.apache.kafka.common.security.{name}LoginModule required" for name in ("plain.Plain", "scram.Scram")
        )
        inside = 'username="ctl" password="ctl-secret" user_ctl="ctl-secret";'
        user, password = ADMIN
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"SASL_SSL://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.controller.plain.{jaas}": f"{plain} {inside}",
            f"listener.name.sasl_ssl.scram-sha-512.{jaas}": f'{scram} username="{user}" password="{password}";',
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._pem,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{user};User:ctl",
            "log.dirs": self._folder / "data",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 2,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 2,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 8 << 20,
        }
        properties = self._folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster_id = "H" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)]
        subprocess.run(
            [*self._java_command(BRIEF), *tool, "--add-scram", f"{MECHANISM}=[name={user},password={password}]"],
            capture_output=True,
            timeout=90,
            check=True,
        )

    def _await_answer(
        self, process: subprocess.Popen[bytes], address: BrokerAddress, deadline: Deadline, timeout_s: float
    ) -> None:
        self.bootstrap = address.bootstrap
        while True:
            assert process.poll() is None, f"the broker ended: {self._last_words()}"
            try:
                self._admin().list_topics(timeout=3)
                return
            except KafkaException:
                assert not deadline.passed, f"the broker did not answer: {self._last_words()}"
