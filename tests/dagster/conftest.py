"""Makes the fixtures of the tests of verbs (commands that change state) and of Spark available in this folder."""

from tests.parts.operated import operated
from tests.spark.tuning import one_jvm, tier_configuration, tuned_jvms

__all__ = ["one_jvm", "operated", "tier_configuration", "tuned_jvms"]
