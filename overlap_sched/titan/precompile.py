r"""torchtitan's precompilation with our pass: ``python -m overlap_sched.titan.precompile``, arguments as for it.

    python -m overlap_sched.titan.precompile --module graph_trainer.llama3 --config graph_trainer_llama3_8b \
        --compile.precompile_artifact_dir artifacts --compile.pass_pipeline overlap_sched ...

``torchtitan.experiments.graph_trainer.precompile_main`` builds its list of passes without looking at
``--compile.pass_pipeline``; here it does. One process makes the artifact for all ranks. They load its order and have
nothing to agree on.
"""

from typing import Any

from torchtitan.experiments.graph_trainer import passes, precompile_main

from overlap_sched.titan.graph_pass import GraphPass, settings_of, with_ours
from overlap_sched.titan.pipeline import NAME

torchtitans = passes.compile_time_passes


def compile_time_passes(traced: Any, config: Any, **how: Any) -> list[GraphPass]:
    """Torchtitan's list for precompilation, with our pass where the job has chosen this pipeline."""
    found: list[GraphPass] = torchtitans(traced, config, **how)
    return with_ours(found, config.compile, settings_of(config)) if config.compile.pass_pipeline == NAME else found


def main() -> None:
    """Make the artifact."""
    passes.compile_time_passes = compile_time_passes
    precompile_main.main()


if __name__ == "__main__":
    main()
