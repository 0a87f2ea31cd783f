"""A cost model that is none, refused where it is given and not at the first graph."""

from typing import Any

from overlap_sched.cost.device import device_named
from overlap_sched.errors import OptionsError


def check_model(model: Any) -> None:
    """Refuse what cannot price nodes; ``None`` is no model, and fine.

    Raises:
        OptionsError: The name of a device, a class, or something else without the methods of
            :class:`overlap_sched.cost.CostModel`.
    """
    if model is None:
        return
    if not isinstance(model, type) and all(callable(getattr(model, name, None)) for name in _METHODS):
        return
    raise OptionsError(
        f"model is {model!r}; it is an object with compute_us and collective_us, such as overlap_sched.cost.Roofline()."
        f"{_meant(model)}"
    )


_METHODS = ("compute_us", "collective_us")


def _meant(model: Any) -> str:
    if isinstance(model, type):
        return f" Did you mean {model.__name__}()?" if all(hasattr(model, name) for name in _METHODS) else ""
    if not isinstance(model, str):
        return ""
    try:
        device = device_named(model)
    except OptionsError:
        return ""
    return f" Did you mean Roofline(device_named({device.name!r})), from overlap_sched.cost?"
