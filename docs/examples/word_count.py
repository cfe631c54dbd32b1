"""Counts the words of all lines. Programs ask the workers for the counts."""

import re

from holdfast import Application, State


def words_of(line: str) -> list[str]:
    """The words of a line, in small letters."""
    return re.findall(r"\w+", line.lower())


def count(word: str, state: State) -> int:
    """The number of times that the word has come so far."""
    return state.increment("n")


def application() -> Application:
    """The processor; in production: `application().run(serve=True)`, so that programs can ask it."""
    app = Application(consumer_group="word-count", auto_offset_reset="earliest")
    lines = app.dataframe(app.topic("lines", value_deserializer="str"))
    words = lines.apply(words_of, expand=True).group_by(lambda word: word, name="word")
    words.apply(count, stateful=True, store="counts").to_topic(app.topic("word-counts"))
    return app


if __name__ == "__main__":
    application().run(serve=True)
