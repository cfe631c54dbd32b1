"""The settings ``HOLDFAST_SPARK__*``: where Spark runs, its memory, its properties."""

from __future__ import annotations

import re

from pydantic import Field, field_validator, model_validator

from holdfast.infra.settings.group import PREFIX, Group, Properties

#: Value of ``HOLDFAST_SPARK__MASTER`` for the Spark that `holdfast spark start` keeps running.
WARM = "warm"
#: Property of Spark that switches the authentication of its own connections on or off.
AUTHENTICATE = "spark.authenticate"
#: Property of Spark with the secret of these connections.
AUTHENTICATE_SECRET = f"{AUTHENTICATE}.secret"


class SparkSettings(Group):
    """Where and how Spark runs."""

    master: str = Field(
        default="local[*]",
        description="Where Spark runs: local[*] in the run itself, spark://host:port on a standalone cluster, "
        "sc://host:port on a Spark Connect server, warm on the Spark that `holdfast spark start` keeps running.",
    )
    driver_memory_mb: int = Field(default=1024, ge=512, description="Maximum heap of the driver JVM, MiB.")
    driver_host: str = Field(
        default="127.0.0.1",
        description="The driver's address for executors; executors on other machines need one that is not loopback.",
    )
    token: str | None = Field(default=None, repr=False, min_length=16, description="Token of the Spark Connect server.")
    secret: str | None = Field(
        default=None,
        repr=False,
        min_length=16,
        description=f"Secret of a standalone cluster, its {AUTHENTICATE_SECRET}.",
    )
    # may hold passwords, such as those of object stores
    conf: Properties = Field(
        default_factory=dict,
        repr=False,
        description="Further properties of Spark, such as spark.executor.memory; they win over Holdfast's.",
    )

    @property
    def over_connect(self) -> bool:
        """Whether a Spark Connect server runs Spark, so that this process starts no JVM."""
        return self.master == WARM or self.master.startswith("sc://")

    @property
    def authenticates(self) -> bool:
        """Whether Spark's own connections need a secret; only an explicit ``false`` in ``conf`` switches it off."""
        return self.conf.get(AUTHENTICATE, "true").lower() != "false"

    @model_validator(mode="after")
    def _guarded(self) -> SparkSettings:
        known = self.secret is not None or AUTHENTICATE_SECRET in self.conf
        if self.master.startswith("spark://") and self.authenticates and not known:
            raise ValueError(
                f"a driver of {self.master} without a secret would obey every program that reaches its port; set "
                f"{PREFIX}SPARK__SECRET to the {AUTHENTICATE_SECRET} of the cluster, or switch it off with "
                f'{{"{AUTHENTICATE}": "false"}} in {PREFIX}SPARK__CONF'
            )
        return self

    @field_validator("master")
    @classmethod
    def _known_master(cls, value: str) -> str:
        if value.startswith("sc://") and "token=" in value:
            raise ValueError(f"the URL is logged and must hold no token; set {PREFIX}SPARK__TOKEN instead")
        if value != WARM and not re.match(r"local(-cluster)?(\[[\w*, ]+\])?$|(spark|sc|k8s)://\S+$|yarn$", value):
            known = "local[*], spark://host:port, sc://host:port, warm, or another master URL of Spark"
            raise ValueError(f"expected {known}")
        return value
