"""How a job's graphs are scheduled: what came with its configuration, else what is switched on, else the defaults."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from overlap_sched.inductor.eager import options_from
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import current_settings

TARGET = "overlap_sched.titan.options"
"""What ``--override.imports`` names."""
_LIMITS = ("memory_limit", "max_slowdown")
"""To one of which the step is fitted, see :class:`overlap_sched.inductor.settings.Settings`."""


def settings_of(config: Any) -> Settings:
    """The settings of a job: what ``override.imports`` of torchtitan's ``GraphTrainer.Config`` gives to :data:`TARGET`.

    Without any, those of :func:`overlap_sched.enable` count, if that was called.

    Raises:
        OptionsError: There is no such option, or it cannot have this value.
    """
    settings = replace(current_settings() or Settings(), stage="titan", notes=())
    for entry in config.override.imports:
        target, given = (entry, {}) if isinstance(entry, str) else entry
        if target == TARGET and given:
            settings = with_given(settings, given)
    return settings


def with_given(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """Settings with what a job's configuration says: fields of ``Options``, and a limit to fit its step to.

    Raises:
        OptionsError: There is no such option, or it cannot have this value.
    """
    limits = {name: given[name] for name in _LIMITS if name in given}
    rest = {name: value for name, value in given.items() if name not in limits}
    others = {name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()}  # of JSON
    if limits:
        memory_limit, max_slowdown = (limits.get(name) for name in _LIMITS)
        settings = replace(settings, memory_limit=memory_limit, max_slowdown=max_slowdown)
    return replace(settings, options=options_from(others)) if others else settings


def plug_in_arguments(settings: Settings) -> dict[str, Any]:
    """The same settings as :func:`overlap_sched.enable` takes them, for the graphs that Inductor compiles."""
    names = ("options", "cost", "model", "ranks_per_node", "cluster", "ranks", "timeout_s")
    return {name: getattr(settings, name) for name in names}
