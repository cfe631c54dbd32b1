"""Names the person or program that launched a run; Holdfast's registry records this name with each change."""

from collections.abc import Mapping
from typing import Protocol

#: Dagster's tag with the person who launched a run or a backfill, set by the webserver (``orchestration.host.front``).
USER_TAG = "user"
#: Dagster's tag of a backfill that was launched again.
#: The tag ``user`` of such a backfill is not used, because it names the person who launched the first backfill.
AGAIN_TAG = "dagster/parent_backfill_id"
#: Maximum number of characters of a name that is recorded.
NAME_MAX = 100


class Launched(Protocol):
    """A Dagster run with its tags."""

    @property
    def run_id(self) -> str:
        """The run's id in Dagster, 36 characters."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Tag name -> value, including the tags that Dagster itself sets."""


def actor_of(run: Launched) -> str:
    """A text that names the run; it begins with the name of the person who launched the run, if that is known."""
    name = f"dagster run {run.run_id}"
    person = run.tags.get(USER_TAG, "")
    return f"{person[:NAME_MAX]}, {name}" if person and AGAIN_TAG not in run.tags else name
