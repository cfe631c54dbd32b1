"""Asks Dagster's webserver by GraphQL, as the UI does: results of checks, and runs. It also launches runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import httpx

from holdfast.infra.tls import trusted_for
from holdfast.orchestration.view.runs import LAUNCH
from tests.drills.patience import RUN_PATIENCE_S, wait_for

_CHECKS = """query($key: AssetKeyInput!, $name: String!) {
  assetCheckExecutions(assetKey: $key, checkName: $name, limit: 25) {
    status timestamp evaluation { timestamp success severity description }
  }
}"""
_RUN = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
_RUNS = """query($filter: RunsFilter!) {
  runsOrError(filter: $filter, limit: 50) { ... on Runs { results { runId status creationTime } } }
}"""
_TERMINATE = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
_FAILURES = """query($id: ID!) {
  logsForRun(runId: $id) {
    ... on EventConnection { events { ... on ExecutionStepFailureEvent { error { message } } } }
  }
}"""
_ENDED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One result of a check; ``at`` is when it was reported, in seconds since the epoch."""

    passed: bool
    words: str
    at: float


class DagsterAnswers:
    """A client of the webserver of one home."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str, **variables: Any) -> Any:
        """The data of a GraphQL answer; errors in the answer are raised."""
        body = {"query": query, "variables": variables}
        verify = trusted_for(self.url)
        answer = httpx.post(f"{self.url}/graphql", json=body, timeout=60.0, trust_env=False, verify=verify).json()
        assert not answer.get("errors"), json.dumps(answer["errors"])[:2000]
        return answer["data"]

    def evaluations(self, key: dg.AssetKey, check: str) -> list[Evaluation]:
        """The results of a check, newest first. A run that ended without a result counts as a failure without text."""
        found = self.ask(_CHECKS, key={"path": list(key.path)}, name=check)["assetCheckExecutions"]
        told = []
        for each in found:
            evaluation = each["evaluation"]
            if evaluation is not None:
                words = evaluation["description"] or ""
                told.append(Evaluation(bool(evaluation["success"]), words, float(evaluation["timestamp"])))
            elif each["status"] == "EXECUTION_FAILED":
                told.append(Evaluation(False, "", float(each["timestamp"])))
        return told

    def launch(self, job: str, config: Mapping[str, Any] | None = None, assets: Sequence[dg.AssetKey] = ()) -> str:
        """Launch a run of a job, or of assets (job ``__ASSET_JOB``). Returns the run id."""
        selector: dict[str, Any] = {
            "repositoryLocationName": "holdfast",
            "repositoryName": "__repository__",
            "jobName": job,
        }
        if assets:
            selector["assetSelection"] = [{"path": list(key.path)} for key in assets]
        parameters = {"selector": selector, "runConfigData": json.dumps(config or {}), "mode": "default"}
        launched = self.ask(LAUNCH, parameters=parameters)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return str(launched["run"]["runId"])

    def run_status(self, run_id: str) -> str:
        """The status of a run."""
        return str(self.ask(_RUN, id=run_id)["runOrError"]["status"])

    def failure_of(self, run_id: str) -> str:
        """The error messages of a run's failed steps."""
        events = self.ask(_FAILURES, id=run_id)["logsForRun"]["events"]
        return "\n".join(each["error"]["message"] for each in events if each.get("error"))

    def ended(self, run_id: str) -> str:
        """Wait until a run has ended, including its Spark. Returns the status."""

        def status() -> str | None:
            now = self.run_status(run_id)
            return now if now in _ENDED else None

        return str(wait_for(status, f"run {run_id} to end", patience_s=RUN_PATIENCE_S))

    def terminate(self, run_id: str) -> None:
        """Terminate a run; a run that has ended stays unchanged."""
        self.ask(_TERMINATE, id=run_id)

    def runs(self, job: str, *, since: float) -> list[str]:
        """The statuses of all runs of a job that were created after ``since``."""
        found = self.ask(_RUNS, filter={"pipelineName": job})["runsOrError"]["results"]
        return [each["status"] for each in found if each["creationTime"] >= since]

    def run_ids(self, job: str) -> list[str]:
        """The ids of a job's runs, newest first."""
        found = self.ask(_RUNS, filter={"pipelineName": job})["runsOrError"]["results"]
        return [str(each["runId"]) for each in found]

    def settled(self, job: str, *, since: float, at_least: int = 1) -> list[str]:
        """Wait until at least ``at_least`` runs of a job exist and all have ended. Returns their statuses."""

        def all_ended() -> list[str] | None:
            found = self.runs(job, since=since)
            return found if len(found) >= at_least and _ENDED.issuperset(found) else None

        return list(wait_for(all_ended, f"the runs of {job} to end"))


def now() -> float:
    """The time on the clock that Dagster's events use."""
    return time.time()
