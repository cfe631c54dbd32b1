"""``Application.clear_state`` on a real broker.

It is refused while a worker runs. When the worker has stopped, it empties the state. The next runs build state again.
"""

from __future__ import annotations

import threading

import pytest

from holdfast import HoldfastError


def committed(stream):
    return sum(stream.topics.committed_offsets(stream.group).values())


@pytest.mark.thorough
def test_state_is_cleared_and_the_input_is_read_from_the_beginning(stream, waiting):
    stream.feed_numbers(100)
    app = stream.application()
    thread = threading.Thread(target=app.run)
    thread.start()
    try:
        waiting(lambda: committed(stream) == 100, "the messages to be counted")
        with pytest.raises(HoldfastError, match="1 live member,"):
            stream.application().clear_state()
    finally:
        app.stop()
        thread.join(60)
    offsets = stream.topics.committed_offsets(stream.group)
    stream.application().clear_state()
    assert stream.counts() == {}
    assert stream.topics.committed_offsets(stream.group) == offsets
    stream.feed_numbers(10)
    stream.application().run(count=10, timeout=60)
    assert stream.counts() == {b"k%d" % number: 1 for number in range(10)}
    stream.application().clear_state(rewind="earliest")
    assert stream.counts() == {}
    stream.application().run(count=110, timeout=60)
    assert stream.counts() == {b"k%d" % number: 11 for number in range(10)}
