"""Why something is not green: the texts of the checks, the next action, and the order of the reasons."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.infra.settings import load_settings
from holdfast.orchestration.project.unloaded import read_unloaded, write_unloaded
from holdfast.orchestration.view import reasons
from holdfast.orchestration.view.asset_page import AssetPage, Check, Evaluation, Execution, Partitions
from holdfast.processors.application.broken_definition import BrokenDefinition
from holdfast.processors.lifecycle.recovery.working_check import STARTING, Answer

RUNNING = frozenset({"fleet"})
KEY = ("state", "fleet", "aircraft_state")


def check(
    status: str, description: str | None = "It differs. What to do: Run it again.", severity: str = "ERROR"
) -> Check:
    evaluation = None if description is None else Evaluation(severity, description)
    return Check("matches_changelog", Execution(status, evaluation))


def page(*checks: Check, materialized: bool = True, partitions: Partitions | None = None) -> AssetPage:
    return AssetPage(KEY, materialized, partitions, checks)


@pytest.mark.parametrize(
    ("answer", "colour", "action"),
    [
        (Answer(False, "dead", "Its process is gone. Since noon. What to do: holdfast x"), "red", "holdfast x"),
        (
            Answer(False, "dead", "Recovery restarts it, attempt 1 of 3."),
            "red",
            "Nothing; it passes without an action.",
        ),
        (
            Answer(False, "lagging", "It lags. What to do: add partitions.", only_warns=True),
            "yellow",
            "add partitions.",
        ),
        (STARTING, "yellow", "Nothing; it passes without an action."),
    ],
)
def test_a_processor_has_the_words_of_its_check(answer: Answer, colour: str, action: str) -> None:
    (found,) = reasons.of_processor("fleet", answer)
    assert (found.subject, found.colour, found.action) == ("processor fleet", colour, action)
    assert answer.text.startswith(found.reason)


@pytest.mark.parametrize("kind", ["healthy", "not-deployed"])
def test_what_works_and_what_was_stopped_need_no_reason(kind: str) -> None:
    assert reasons.of_processor("fleet", Answer(True, kind, "It works.")) == []  # type: ignore[arg-type]


def test_failing_checks_are_red_warnings_yellow_and_passing_ones_silent() -> None:
    (red,) = reasons.of_assets([page(check("FAILED"))], RUNNING)
    assert (red.colour, red.reason, red.action) == ("red", "It differs.", "Run it again.")
    assert red.subject == "asset state/fleet/aircraft_state, check matches_changelog"
    (yellow,) = reasons.of_assets([page(check("FAILED", severity="WARN"))], RUNNING)
    assert yellow.colour == "yellow"
    (failed,) = reasons.of_assets([page(check("EXECUTION_FAILED", None))], RUNNING)
    assert (failed.colour, failed.reason) == ("red", "Its run failed.")
    assert reasons.of_assets([page(check("SUCCEEDED")), page(check("IN_PROGRESS"))], RUNNING) == []


def test_grey_has_the_reason_why_nothing_makes_it_green() -> None:
    why = {"state/fleet/aircraft_state": "Free memory."}
    (never,) = reasons.of_assets([page(materialized=False)], RUNNING, why)
    assert (never.colour, never.reason, never.action) == ("grey", "It was never materialised.", "Free memory.")
    (unrun,) = reasons.of_assets([page(Check("copies_equal", None))], RUNNING)
    assert unrun.reason == "Not run since it was materialised: copies_equal."
    (absent,) = reasons.of_assets([page(partitions=Partitions(2, 6, 0))], RUNNING)
    assert absent.reason == "3 of its time partitions are not materialised."


def test_an_asset_of_the_project_with_a_condition_needs_no_action() -> None:
    for condition, action in (("eager", "Nothing; its automation condition (eager) materialises it"), (None, "Mater")):
        own = AssetPage(("number_of_customers",), False, None, (), condition)
        (found,) = reasons.of_assets([own], RUNNING)
        assert found.action.startswith(action)


def test_an_asset_of_the_project_whose_run_failed_is_red_until_another_run_makes_it() -> None:
    failed = AssetPage(("number_of_customers",), False, None, (), "eager", "f2030bc5-93ba")
    (found,) = reasons.of_assets([failed], RUNNING, dagster="http://127.0.0.1:3000")
    assert (found.colour, found.reason) == ("red", "Its last run, f2030bc5-93ba, failed.")
    assert "open http://127.0.0.1:3000/runs/f2030bc5-93ba. Then materialise the asset" in found.action


def test_a_check_whose_run_failed_names_the_page_of_that_run() -> None:
    broken = Check("matches_changelog", Execution("EXECUTION_FAILED", None, "0abc-1"))
    (found,) = reasons.of_assets([page(broken)], RUNNING, dagster="https://dagster.example")
    assert found.action.endswith("open https://dagster.example/runs/0abc-1.")


def test_grey_that_needs_no_person_is_told_apart_from_grey_that_does() -> None:
    soon, memory = reasons.of_assets(
        [page(materialized=False), AssetPage(("state", "fleet", "other_state"), False, None, ())],
        RUNNING,
        {"state/fleet/other_state": "Free memory."},
    )
    assert (soon.by_itself, memory.by_itself) == (True, False)
    assert not reasons.of_processor("fleet", STARTING)[0].by_itself


def test_assets_of_a_processor_that_is_not_meant_to_run_have_its_one_reason() -> None:
    assert reasons.of_assets([page(check("FAILED"))], frozenset()) == []
    assert reasons.of_undeployed("fleet").colour == "grey"


def test_the_check_working_is_told_by_the_processor_itself() -> None:
    own = AssetPage(("processors", "fleet", "fleet_processor"), True, None, (Check("working", check("FAILED").last),))
    assert reasons.of_assets([own], RUNNING) == []


def test_a_service_that_does_not_run_is_grey_and_a_broken_definition_red() -> None:
    services = reasons.of_services({"kafka": "127.0.0.1:9092", "daemon": None})
    broken = reasons.of_definition(BrokenDefinition("shop:app", "ValueError: no"))
    assert [each.colour for each in services] == ["grey"]
    assert broken.reason == "shop:app can't be used: ValueError: no."
    assert reasons.colour_of([*services, broken]) == "red"
    assert reasons.ordered([*services, broken])[0] is broken
    assert reasons.colour_of(services) == "grey"
    assert reasons.colour_of([]) == "green"


def test_one_reason_of_many_is_grouped() -> None:
    many = reasons.of_assets([page(materialized=False), page(materialized=False), page(check("FAILED"))], RUNNING)
    assert [len(subjects) for subjects, _ in reasons.grouped(many)] == [2, 1]


ERROR = """dagster._core.errors.DagsterUserCodeLoadError: Error occurred during the loading of Dagster definitions in
    module_name=shop_assets

Stack Trace:
  File "/site-packages/dagster/_grpc/server.py", line 459, in __init__

The above exception was caused by the following exception:
ModuleNotFoundError: No module named 'nothing_of_this_name'

Stack Trace:
  File "/shop/shop_assets.py", line 1, in <module>
    import nothing_of_this_name
"""


def test_a_code_location_that_does_not_load_is_red_with_its_error() -> None:
    (reason,) = reasons.of_locations({"holdfast": ERROR})
    assert (reason.subject, reason.colour) == ("code location holdfast", "red")
    assert reason.reason == (
        "Dagster can't load it: ModuleNotFoundError: No module named 'nothing_of_this_name'. Its assets, jobs, sensors "
        "and schedules stand still."
    )
    (other,) = reasons.of_locations({"holdfast": "its code server did not start in time"})
    assert "its code server did not start in time. Its assets" in other.reason
    assert reasons.of_locations({}) == []


def test_what_does_not_load_is_told_by_a_file(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home")
    assert read_unloaded(settings) == {}
    # the folder does not exist yet: the failure is logged, and the daemon continues
    write_unloaded(settings, {"holdfast": ERROR})
    assert read_unloaded(settings) == {}
    settings.paths.dagster.mkdir(parents=True)
    write_unloaded(settings, {"holdfast": ERROR})
    assert read_unloaded(settings) == {"holdfast": ERROR}
    write_unloaded(settings, {})
    assert read_unloaded(settings) == {}


def test_a_supervisor_that_hangs_is_red() -> None:
    (reason,) = reasons.of_services({"supervisor": f"process 7, {reasons.HANGS}"})
    assert (reason.subject, reason.colour) == ("service supervisor", "red")
    assert reason.action == "Run `holdfast down`, then `holdfast up`."
    assert reasons.of_services({"supervisor": "process 7"}) == []
