"""`launch --dry-run --compile`: what XLA says that a sweep's programs take on this machine's
devices, beside the planner's estimate. Nothing is run, and no weights are read."""

from typing import Any

import jax

from isojax.core.errors import InputError, RunFailed
from isojax.core.shapes import ASSUMED_TRAINING_PROBLEMS
from isojax.launch.device_budget import format_sizes, suggest_fit
from isojax.launch.display import print_text
from isojax.launch.local.compile_for_topology import first_line, program_peak, usage_table
from isojax.launch.local.setup import SweepSetup
from isojax.train.programs import SweepPrograms


def compile_here(setup: SweepSetup) -> None:
    """Compile the programs that take the most memory, and print what they take.

    InputError where that is more than a device has; RunFailed where the compiler fails.
    """
    config = setup.config
    budget = setup.device_budget
    if config.run.sampler_mesh is not None:
        raise InputError(
            found="--compile plans one mesh, and run.sampler_mesh is set",
            fix="Leave it out, plan each by --mesh.",
        )

    programs = setup.programs[0]
    if config.cell.rl.max_staleness is not None:
        # An asynchronous run has the same programs, in two threads.
        cell = config.cell.with_settings(rl={"max_staleness": None})
        programs = SweepPrograms(cell, config.sweep, budget.pairs, programs.mesh, setup.task)
    rollouts: Any = programs.rollout_programs
    # By name, each with the shapes of its arguments, such as a table of so many problems.
    main_programs = rollouts.main_programs(programs.update_shapes(ASSUMED_TRAINING_PROBLEMS))

    print_text(f"compiling with {format_sizes(config.sweep)}")
    memory = budget.estimate(config.sweep)
    needed = {}  # by program, bytes of a device while it runs: its own, and what a run holds then
    for name, (program, arguments) in main_programs.items():
        try:
            of_program = program_bytes(program.jitted, arguments, budget.backend)
        except jax.errors.JaxRuntimeError as e:
            raise RunFailed(f"the compiler fails at {name}: {first_line(e)}.") from e
        needed[name] = of_program + memory.resident_bytes(name)

    print_text(usage_table(needed, memory, budget.device_memory))
    if max(needed.values()) > budget.device_memory:
        # Twice, four or eight times as many devices are suggested; more of a CPU's, which share its
        # memory, are no help.
        doublings = range(1, 4) if budget.backend != "cpu" else ()
        counts = [budget.mesh.devices << k for k in doublings]
        larger_meshes = [(f"{count} such devices", count) for count in counts]
        suggestion = suggest_fit(config.sweep, budget, larger_meshes)
        raise InputError(
            found=f"with {format_sizes(config.sweep)} it does not fit, by the compiler's figures",
            fix=suggestion,
        )


def program_bytes(function: Any, arguments: tuple[Any, ...], platform: str) -> int:
    """Bytes of one device that a jitted function takes for arguments of these shapes.

    platform: "cpu", "gpu" or "tpu". A CPU's compiler says no peak of all: there it is the sum of
    arguments, outputs that are not written in place of arguments, and temporaries.
    """
    if platform != "cpu":
        return program_peak(function, arguments)
    used = function.lower(*arguments).compile().memory_analysis()
    new_outputs = used.output_size_in_bytes - used.alias_size_in_bytes
    return used.argument_size_in_bytes + new_outputs + used.temp_size_in_bytes
