"""Look again and again for what another rank is to do: often at first, seldom later, for so long and no longer."""

from collections.abc import Callable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.1
"""Time between two looks: twice as long each time. A thousand ranks make ten thousand small requests a second at most;
a rank learns what it waits for at most a tenth of a second late."""


class Backoff:
    """Pauses between looks, counted from when it is made; the clock (seconds) and the sleep are given."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        self._clock, self._sleep = clock, sleep
        self._began_s = clock()
        self._pause_s = FIRST_PAUSE_S

    def pause(self, limit_s: float) -> bool:
        """Sleep a while, but not beyond the limit; ``False``, at once, if that is past."""
        left_s = self._began_s + limit_s - self._clock()
        if left_s <= 0:
            return False
        self._sleep(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True
