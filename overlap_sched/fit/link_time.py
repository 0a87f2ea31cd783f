"""When copies to and from the host can run: free time on their stream, along one order."""

from bisect import bisect_left, insort

from overlap_sched.transform.host import HostLink


class LinkTime:
    """Slots that are taken, per stream, in microseconds of the order."""

    def __init__(self, link: HostLink, end_us: float) -> None:
        """All is free, to the end of the order."""
        self.link, self.end_us = link, end_us
        out: list[tuple[float, float]] = []
        self._taken = {"out": out, "in": out if link.streams == 1 else []}

    def slots(self, nbytes: int, from_us: float, to_us: float) -> tuple[float, float] | None:
        """Begin of a copy out, as soon as may be, and of one back, as late as may be; ``None``: not both between."""
        us = self.link.copy_us(nbytes)
        out = self._soonest(from_us, us)
        back = self._latest(to_us, us)
        return (out, back) if back is not None and out + us <= back else None

    def take(self, nbytes: int, out_us: float, in_us: float) -> None:
        """Both slots are taken."""
        us = self.link.copy_us(nbytes)
        insort(self._taken["out"], (out_us, out_us + us))
        insort(self._taken["in"], (in_us, in_us + us))

    def _soonest(self, from_us: float, us: float) -> float:
        at = from_us
        taken = self._taken["out"]
        for begin, end in taken[max(bisect_left(taken, (from_us,)) - 1, 0) :]:
            if at + us <= begin:
                return at
            at = max(at, end)
        return at

    def _latest(self, to_us: float, us: float) -> float | None:
        end_at = to_us
        taken = self._taken["in"]
        for begin, end in reversed(taken[: bisect_left(taken, (to_us,))]):
            if end <= end_at - us:
                break
            end_at = min(end_at, begin)
        return end_at - us if end_at - us >= 0 else None
