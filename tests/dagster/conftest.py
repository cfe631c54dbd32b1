"""The verbs' own fixture, and Spark as its tests have it."""

from tests.operating import operated
from tests.spark.tuning import tier_configuration, tuned_jvms

__all__ = ["operated", "tier_configuration", "tuned_jvms"]
