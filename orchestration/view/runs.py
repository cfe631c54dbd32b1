"""Launches runs of assets through the Dagster webserver of this home folder, so that Dagster's queue and limits apply.

Invariants:
    - A run is launched by the GraphQL mutation that the UI sends. So its page, tags and limits are the same as those of
      a run that a user launched in the UI.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BROKER_UNAVAILABLE
from holdfast.infra.masking import masked
from holdfast.infra.settings import Settings
from holdfast.infra.tls import trusted_for
from holdfast.orchestration.host import local
from holdfast.orchestration.view.progress import WAITING, Progress, SeenRun, progress

#: The GraphQL mutation that launches a run; Dagster's UI sends the same mutation.
LAUNCH = """mutation($parameters: ExecutionParams!) {
  launchRun(executionParams: $parameters) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on InvalidSubsetError { message }
  }
}"""
_SEEN = """fragment Seen on Run {
  runId status creationTime startTime jobName allPools assetSelection { path }
}"""
_RUN = f"""{_SEEN}
query($id: ID!) {{
  runOrError(runId: $id) {{ __typename ... on Run {{ ...Seen }} }}
  logsForRun(runId: $id) {{
    ... on EventConnection {{
      events {{
        __typename
        ... on MessageEvent {{ message }}
        ... on ExecutionStepFailureEvent {{ error {{ message }} }}
      }}
    }}
  }}
}}"""
#: The GraphQL query for all unfinished runs (a queued run may wait for them) and for the daemon's last heartbeat.
_UNFINISHED = f"""{_SEEN}
{{ runsOrError(filter: {{statuses: [NOT_STARTED, QUEUED, STARTING, STARTED, CANCELING]}}, limit: 100) {{
  ... on Runs {{ results {{ ...Seen }} }} }}
  instance {{ daemonHealth {{ daemonStatus(daemonType: "QUEUED_RUN_COORDINATOR") {{ lastHeartbeatTime }} }} }} }}"""
#: Seconds since the last heartbeat after which Dagster's daemon counts as dead. A busy daemon may write heartbeats only
#: every 30 s, or less often.
_DAEMON_SILENT_S = 120.0
_ENDED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
#: Seconds between two queries for the state of a run.
_LOOK_EVERY_S = 1.0


class DagsterAway(HoldfastError):
    """The webserver of this home does not run or does not answer."""

    exit_code = EXIT_BROKER_UNAVAILABLE


class RunFailed(HoldfastError):
    """Dagster refused a run, or the run ended without success. Fields: run, status."""


class DagsterRuns:
    """Launches runs of assets, and waits for their end.

    Raises:
        DagsterAway: The webserver does not run or does not answer; all methods may raise this error, too.
    """

    def __init__(self, settings: Settings) -> None:
        found = local.running(settings, local.WEBSERVER)
        if found is None:
            raise DagsterAway("Dagster's webserver does not run in this home.", action="Start it: `holdfast up`.")
        self.url = found.url
        token = next(iter(settings.webserver.tokens.values()), None)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def launch(self, assets: Sequence[Sequence[str]]) -> str:
        """Launch a run that materialises these assets; returns the id of the run.

        Raises:
            RunFailed: Dagster refused the run.
        """
        selector = {
            "repositoryLocationName": "holdfast",
            "repositoryName": "__repository__",
            "jobName": "__ASSET_JOB",
            "assetSelection": [{"path": list(path)} for path in assets],
        }
        parameters = {"selector": selector, "runConfigData": "{}", "mode": "default"}
        answer = self._ask(LAUNCH, parameters=parameters)["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise RunFailed(
                f"Dagster did not launch the run: {masked(json.dumps(answer))[:500]}.",
                action=f"Open {self.url}, reload the definitions, and materialise the asset there.",
            )
        return str(answer["run"]["runId"])

    def wait(self, run_id: str, tell: Callable[[Progress], None], timeout_s: float) -> None:
        """Wait until a run has succeeded; ``tell`` gets the run's progress once a second.

        Raises:
            RunFailed: The run failed, was cancelled, or did not end in time.
        """
        deadline, status = time.monotonic() + timeout_s, "unknown"
        while time.monotonic() < deadline:
            answer = self._ask(_RUN, id=run_id)
            status = str(answer["runOrError"].get("status", "unknown"))
            events = answer["logsForRun"].get("events", [])
            if status == "SUCCESS":
                return
            if status in _ENDED or answer["runOrError"]["__typename"] != "Run":
                break
            said = next((each["message"] for each in reversed(events) if each.get("message")), "")
            tell(self._progress(_seen(answer["runOrError"], said)))
            time.sleep(_LOOK_EVERY_S)
        why = "; ".join(each["error"]["message"].strip() for each in events if each.get("error"))
        raise RunFailed(
            f"Run {run_id} is {status.lower()} and did not succeed. {masked(why)[:1000]}".strip(),
            action=f"Open {self.url}/runs/{run_id}, and mend what its first failed step names.",
            run=run_id,
            status=status,
        )

    def _progress(self, run: SeenRun) -> Progress:
        if run.status not in WAITING:
            return progress(run, (), time.time())
        answer, now = self._ask(_UNFINISHED), time.time()
        beat = answer["instance"]["daemonHealth"]["daemonStatus"]["lastHeartbeatTime"]
        others = [_seen(each) for each in answer["runsOrError"].get("results", [])]
        return progress(run, others, now, daemon_runs=beat is not None and now - float(beat) < _DAEMON_SILENT_S)

    def _ask(self, query: str, **variables: Any) -> Any:
        body = {"query": query, "variables": variables}
        try:
            answer = httpx.post(
                f"{self.url}/graphql",
                json=body,
                headers=self._headers,
                timeout=60.0,
                trust_env=False,
                verify=trusted_for(self.url),
            )
            document = answer.raise_for_status().json()
            if document.get("errors"):
                raise ValueError(json.dumps(document["errors"])[:500])
            return document["data"]
        except (httpx.HTTPError, ValueError, KeyError) as failure:
            raise DagsterAway(
                f"Dagster's webserver at {self.url} did not answer: {masked(str(failure))[:500]}.",
                action="Check it with `holdfast status`. If it asks for a token, set `HOLDFAST_WEBSERVER__TOKENS`.",
                url=self.url,
            ) from failure


def _seen(run: Mapping[str, Any], said: str = "") -> SeenRun:
    """A ``SeenRun`` from the fields of the GraphQL fragment ``Seen``; ``said`` is the last message of the run's log."""
    assets = sorted({"/".join(each["path"]) for each in run["assetSelection"] or ()})
    shown = ", ".join(assets[:2]) + (f" and {len(assets) - 2} more" if len(assets) > 2 else "")
    return SeenRun(
        run_id=str(run["runId"]),
        status=str(run["status"]),
        created_at=float(run["creationTime"]),
        started_at=None if run["startTime"] is None else float(run["startTime"]),
        what=shown or ("checks" if str(run["jobName"]).startswith("__") else str(run["jobName"])),
        pools=None if run["allPools"] is None else frozenset(run["allPools"]),
        said=said,
    )
