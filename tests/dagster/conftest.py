"""Makes the fixtures of the verbs' tests and of the Spark tests available to the tests of this folder."""

from tests.parts.operated import operated
from tests.spark.tuning import one_jvm, tier_configuration, tuned_jvms

__all__ = ["one_jvm", "operated", "tier_configuration", "tuned_jvms"]
