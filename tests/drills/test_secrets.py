"""An installation with a secret in every setting that can hold one. No text, page or command line shows a secret."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import dagster as dg
import httpx
import pytest
from confluent_kafka import Producer

from holdfast.assets import keys
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import PROJECT, Settings, load_settings
from holdfast.infra.setup.java import BRIEF, Java
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from tests.drills.home import Home, Told, module_of
from tests.drills.openness import KEEPERS, CommandLines, held_secrets, named_in, open_to_others
from tests.drills.patience import wait_for
from tests.kafka.object_store import BUCKET, S3Server
from tests.kafka.secured import SecuredBroker
from tests.parts.operated import DEFINITION, PARTITIONS
from tests.parts.postgres import PostgresServer
from tests.parts.webhook import SECRET, Webhook
from tests.spark.tuning import INTERPRETED

#: The test starts all parts of an installation and four runs, which takes minutes on an idle machine.
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3000)]

NAME, STORE = "guarded", "counts"
#: One secret for each setting. It has only letters and digits, so that no encoding changes it.
PLACES = ("kafka", "registry", "query", "catalog", "dagster", "access", "s3", "token", "spark", "option", "wrong")
#: A run with a JVM takes minutes on a machine that is busy with other tests.
JVM_WITHIN_S = 900.0
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
_PAGES = ("/health", "/ready", "/status", "/metrics", "/nowhere")
_RUNS = "{ runsOrError { ... on Runs { results { runConfigYaml tags { key value } } } } }"
_EVENTS = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
  ... on MessageEvent { message }
  ... on ExecutionStepFailureEvent { error { message stack errorChain { error { message stack } } } }
} } } }"""


@dataclass
class Guarded:
    """An installation on a secured broker, Postgres, an object store and a webhook."""

    home: Home
    secrets: dict[str, str]
    postgres: PostgresServer
    databases: dict[str, str]
    s3: S3Server
    webhook: Webhook
    client: dict[str, str]
    told: list[str]

    @property
    def topics(self) -> Topics:
        return Topics(str(self.home.settings.kafka.bootstrap_servers), self.client)

    def cli(self, *words: str, check: bool = True, **variables: str) -> Told:
        """Run a command with additional environment variables. Its output is kept for the search for secrets."""
        environment = {**self.home.environment, **variables}
        done = Home(self.home.settings, self.home.broker, self.home.definitions, environment).cli(*words, check=check)
        self.told.append(done.text)
        return done

    def feed(self, number: int) -> None:
        producer = Producer({"bootstrap.servers": self.topics.bootstrap, **self.client})
        for index in range(number):
            producer.produce(f"{NAME}-in", b"1", f"k{index % 10}".encode())
        assert producer.flush(60) == 0

    def materialise(self, key: dg.AssetKey) -> str:
        """Materialise an asset and return the run's status.

        The texts of its events are kept for the search for secrets.
        """
        run = self.home.dagster.launch("__ASSET_JOB", {}, [key])
        dagster = self.home.dagster
        wait_for(
            lambda: dagster.run_status(run) in ENDED, f"run {run} of {key.path[-1]} to end", patience_s=JVM_WITHIN_S
        )
        status = dagster.run_status(run)
        self.told.append(json.dumps(self.home.dagster.ask(_EVENTS, id=run)))
        return status

    def rows(self) -> Iterator[tuple[str, str]]:
        """Every row of every table in the three databases, as text."""
        for database in self.databases.values():
            listed = self.postgres.query("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database)
            for (table,) in listed:
                for (row,) in self.postgres.query(f'SELECT t::text FROM "{table}" t', database):
                    yield f"{database}.{table}", str(row)


@pytest.fixture
def guarded(
    tmp_path: Path, java: Java, broker_jars: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Guarded]:
    values = {place: f"{place}{secrets.token_hex(12)}" for place in PLACES}
    broker = SecuredBroker(tmp_path / "kafka", java, broker_jars)
    postgres, webhook = PostgresServer().start(), Webhook()
    s3 = S3Server(tmp_path / "s3", (values["access"], values["s3"]))
    definitions = tmp_path / "definitions"
    definitions.mkdir()
    (definitions / f"{module_of(NAME)}.py").write_text(DEFINITION.format(group=NAME))
    monkeypatch.syspath_prepend(str(definitions))
    settings: Settings | None = None
    home: Home | None = None
    try:
        broker.start()
        s3.start()
        client = broker.add_user("app", values["kafka"])
        for kind in ("topic", "group", "transactional-id", "cluster"):
            broker.allow("app", "ALL", kind, "kafka-cluster" if kind == "cluster" else "*")
        databases = {place: postgres.new_database() for place in ("registry", "catalog", "dagster")}
        for place, database in databases.items():
            postgres.query(f"CREATE ROLE {place} LOGIN PASSWORD '{values[place]}'")
            postgres.query(f'ALTER DATABASE "{database}" OWNER TO {place}')
        environment = variables(tmp_path, values, postgres, databases, s3, webhook, broker.bootstrap, client)
        environment["PYTHONPATH"] = os.pathsep.join([str(PROJECT), str(definitions)])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        settings = load_settings()
        settings.paths.dagster.mkdir(parents=True)
        production = files("holdfast.infra") / "dagster" / "production.yaml"
        (settings.paths.dagster / "dagster.yaml").write_text(production.read_text())
        home = Home(settings, broker, definitions, environment)
        yield Guarded(home, {**values, "webhook": SECRET}, postgres, databases, s3, webhook, client, [])
    finally:
        if home is not None:
            home.cli("down", check=False)
        webhook.stop()
        s3.stop()
        postgres.remove()
        broker.stop()
        sys.modules.pop(module_of(NAME), None)


def variables(
    folder: Path,
    values: dict[str, str],
    postgres: PostgresServer,
    databases: dict[str, str],
    s3: S3Server,
    webhook: Webhook,
    bootstrap: str,
    client: dict[str, str],
) -> dict[str, str]:
    """The settings, with one secret in each setting that can hold one."""
    at = f"127.0.0.1:{postgres.port}"
    warehouse = {
        "URL": f"s3://{BUCKET}/warehouse",
        "CATALOG_URL": f"postgresql://{at}/{databases['catalog']}",
        "CATALOG_USER": "catalog",
        "CATALOG_PASSWORD": values["catalog"],
        "S3_ENDPOINT": f"http://127.0.0.1:{s3.port}",
        "S3_REGION": "us-east-1",
        "S3_ACCESS_KEY": values["access"],
        "S3_SECRET_KEY": values["s3"],
    }
    registry = f"postgresql+psycopg://registry:{values['registry']}@{at}/{databases['registry']}"
    dagster = ("127.0.0.1", str(postgres.port), databases["dagster"], "dagster", values["dagster"])
    conf = {
        **INTERPRETED,
        "spark.hadoop.fs.s3a.secret.key": values["spark"],
        "spark.driver.defaultJavaOptions": f"-Dsome.password={values['option']} {BRIEF}",
    }
    return {
        "HOLDFAST_HOME": str(folder / "home"),
        "HOLDFAST_PROCESSORS": json.dumps([f"{module_of(NAME)}:application"]),
        "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        "HOLDFAST_KAFKA__CLIENT_CONFIG": json.dumps(client),
        "HOLDFAST_REGISTRY_URL": f"{registry}?application_name=holdfast&sslpassword={values['query']}",
        **{f"HOLDFAST_WAREHOUSE__{name}": value for name, value in warehouse.items()},
        "HOLDFAST_CHECKPOINTS__URL": s3.url,
        "HOLDFAST_CHECKPOINTS__OPTIONS": json.dumps(s3.options()),
        "HOLDFAST_WEBHOOK__URL": webhook.url,
        "HOLDFAST_SERVING__TOKEN": values["token"],
        "HOLDFAST_SPARK__MASTER": "local[1]",
        "HOLDFAST_SPARK__CONF": json.dumps(conf),
        **dict(
            zip(
                (f"DAGSTER_POSTGRES_{name}" for name in ("HOST", "PORT", "DB", "USER", "PASSWORD")),
                dagster,
                strict=True,
            )
        ),
    }


def test_no_secret_of_an_installation_shows(guarded: Guarded) -> None:
    with CommandLines(guarded.secrets).watched() as commands:
        work_and_fail(guarded)
    assert commands.seen == set()
    assert len(commands.looked) > 20
    paths = guarded.home.settings.paths
    assert open_to_others(paths.home) == []
    assert any(file.is_file() for pattern in KEEPERS for file in paths.home.glob(pattern))
    assert held_secrets(paths.home, guarded.secrets) == []
    assert [(name, text) for text in guarded.told for name in named_in(text, guarded.secrets)] == []
    rows = list(guarded.rows())
    assert {place.partition(".")[2] for place, _ in rows} >= {"incidents", "runs", "event_logs", "iceberg_tables"}
    assert [(place, name, row) for place, row in rows for name in named_in(row, guarded.secrets)] == []
    assert named_in(json.dumps(guarded.webhook.received), guarded.secrets) == []


def work_and_fail(guarded: Guarded) -> None:
    """Run a deployment, a recovery and a snapshot. Then make each connection fail."""
    home = guarded.home
    home.addresses = dict(json.loads(guarded.cli("up", "--json").text))
    guarded.topics.create(TopicSpec(f"{NAME}-in", PARTITIONS, 1))
    guarded.feed(100)
    guarded.cli("apply", "provision", NAME, "--yes")
    guarded.cli("apply", "deploy", NAME, "--yes")
    worker = ProcessorClient(NAME, "0", home.settings.paths)
    status = worker.status()
    assert status is not None
    guarded.webhook.status = 500
    guarded.webhook.start()
    os.kill(status.pid, signal.SIGKILL)
    wait_for(lambda: "resolved" in guarded.cli("incidents", "list", "--json").text, "the recovery of the worker")
    look_at_pages(guarded)
    assert guarded.materialise(keys.state_key(NAME, STORE)) == "SUCCESS"
    assert guarded.materialise(keys.snapshot_key(NAME, STORE)) == "SUCCESS"
    guarded.webhook.status = 200

    # make each connection fail, in runs and in commands
    guarded.postgres.query(f"ALTER ROLE catalog PASSWORD '{guarded.secrets['wrong']}'")
    assert guarded.materialise(keys.snapshot_key(NAME, STORE)) == "FAILURE"
    assert guarded.cli("warehouse", "register", check=False).code != 0
    guarded.postgres.query(f"ALTER ROLE catalog PASSWORD '{guarded.secrets['catalog']}'")
    wrong = guarded.secrets["wrong"]
    registry = home.environment["HOLDFAST_REGISTRY_URL"]
    for variable, value, words in (
        ("HOLDFAST_REGISTRY_URL", registry.replace(guarded.secrets["registry"], wrong), ("incidents", "list")),
        ("HOLDFAST_REGISTRY_URL", registry.replace("postgresql+psycopg", "mysql"), ("incidents", "list")),
        ("HOLDFAST_REGISTRY_URL", f"{registry}&strange={wrong}", ("incidents", "list")),
        (
            "HOLDFAST_KAFKA__CLIENT_CONFIG",
            json.dumps({**guarded.client, "sasl.password": wrong}),
            ("plan", "deploy", NAME),
        ),
        ("HOLDFAST_WAREHOUSE__S3_SECRET_KEY", wrong, ("warehouse", "register")),
        ("HOLDFAST_CHECKPOINTS__OPTIONS", json.dumps({"secret": wrong, "nonsense": 1}), ("orphans",)),
        ("HOLDFAST_CHECKPOINTS__OPTIONS", json.dumps(guarded.s3.options((wrong, wrong))), ("orphans",)),
    ):
        failed = guarded.cli(*words, check=False, **{variable: value})
        assert failed.code != 0 or "could not be read" in failed.text, f"{variable}: {failed.text}"
    guarded.s3.stop()
    assert guarded.materialise(keys.snapshot_key(NAME, STORE)) == "FAILURE"
    wait_for(lambda: len(guarded.webhook.received) >= 3, "the messages of incident and failed runs")
    look_at_pages(guarded)
    guarded.cli("down")


def look_at_pages(guarded: Guarded) -> None:
    """Request pages of the worker and of the webserver, without a token and with a wrong token."""
    url = json.loads((guarded.home.settings.paths.run / f"{NAME}-0.json").read_text())["url"]
    for page in _PAGES:
        for headers in ({}, {"Authorization": f"Bearer {guarded.secrets['wrong']}"}):
            guarded.told.append(httpx.get(f"{url}{page}", headers=headers, timeout=30, trust_env=False).text)
    guarded.told.append(httpx.post(f"{url}/pause", timeout=30, trust_env=False).text)
    guarded.told.append(httpx.get(guarded.home.dagster.url, timeout=60, trust_env=False).text)
    guarded.told.append(json.dumps(guarded.home.dagster.ask(_RUNS)))
