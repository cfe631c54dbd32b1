"""Progress in a run's log: each thing once, however often it is told."""

from collections.abc import Callable


def teller(log: Callable[[str], None]) -> Callable[[str], None]:
    """Passes on to the log what is new; the same sentence after other seconds is not."""
    said = ""

    def tell(text: str) -> None:
        nonlocal said
        now = text.rsplit(" after ", 1)[0]
        if now != said:
            said = now
            log(text)

    return tell
