"""The verbs' own fixture, and Spark as its tests have it."""

from tests.parts.operated import operated
from tests.spark.tuning import one_jvm, tier_configuration, tuned_jvms

__all__ = ["one_jvm", "operated", "tier_configuration", "tuned_jvms"]
