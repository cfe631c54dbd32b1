"""Visits of a website: the clicks of a visitor that are at most 30 minutes apart."""

from datetime import timedelta
from typing import Any

from holdfast import Application, Count, StateClient
from holdfast.dataframe.windows import Collect, Earliest, Latest


def application() -> Application:
    """The processor; in production: `application().run(serve=True)`, so that programs can ask it."""
    app = Application(consumer_group="site", auto_offset_reset="earliest", dead_letter_topic="clicks-late")
    clicks = app.dataframe(app.topic("clicks", key_deserializer="str"))
    visits = clicks.session_window(
        timedelta(minutes=30),
        grace_ms=timedelta(minutes=5),
        name="visits",
        on_late="dead-letter",
        retention=timedelta(days=7),
    ).agg(clicks=Count(), landed=Earliest("page"), left=Latest("page"), pages=Collect("page"))
    visits.final(closing_strategy="partition").apply(summary).to_topic(app.topic("visits"))
    return app


def summary(visit: dict) -> dict:
    """What is sent when a visit has ended."""
    seconds = (visit["end"] - visit["start"]) // 1000
    pages = len(set(visit["pages"]))
    return {"seconds": seconds, "clicks": visit["clicks"], "pages": pages, "from": visit["landed"], "to": visit["left"]}


def visits_of(visitor: str, site: StateClient) -> list[dict[str, Any]]:
    """The visits of the last seven days, and the one that is under way: read from the running workers."""
    return [{"since": each["start"], **each["value"]} for each in site.windows("visits", visitor).windows]


if __name__ == "__main__":
    application().run(serve=True)
