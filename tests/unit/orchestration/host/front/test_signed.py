"""A run that a person launches carries the name of that person, even if the request contains another name."""

from __future__ import annotations

import pytest

from holdfast.orchestration.host.front.signed_requests import signed

OTHER = [{"key": "team", "value": "a"}]
FORGED = [*OTHER, {"key": "user", "value": "root"}]
SIGNED = [*OTHER, {"key": "user", "value": "anna"}]


@pytest.mark.parametrize("tags", [OTHER, FORGED])
def test_every_way_of_a_launch_is_signed(tags: list[dict[str, str]]) -> None:
    execution = {"selector": 1, "executionMetadata": {"tags": tags, "parentRunId": "x"}}
    done = {"selector": 1, "executionMetadata": {"tags": SIGNED, "parentRunId": "x"}}
    assert signed({"executionParams": execution}, "anna") == {"executionParams": done}
    assert signed({"executionParamsList": [execution, execution]}, "anna") == {"executionParamsList": [done, done]}
    again = {"parentRunId": "x", "extraTags": tags}
    assert signed({"reexecutionParams": again}, "anna") == {
        "reexecutionParams": {"parentRunId": "x", "extraTags": SIGNED}
    }


@pytest.mark.parametrize(
    "metadata", [{"stepKeys": None}, {"executionMetadata": None}, {"executionMetadata": {"tags": None}}]
)
def test_a_launch_without_tags_is_signed(metadata: dict[str, object]) -> None:
    done = signed({"executionParams": metadata}, "anna")["executionParams"]
    assert done["executionMetadata"]["tags"] == [{"key": "user", "value": "anna"}]


def test_other_changes_stay() -> None:
    assert signed({"runId": "x", "reexecutionParams": None}, "anna") == {"runId": "x", "reexecutionParams": None}
