"""`isojax accelerator`: whether the kernels of the devices here are right, and how fast a run's
sampler and update are compared with the plan."""

import importlib.metadata
import platform as python_platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import jax
from jax.sharding import Mesh

from isojax import __version__
from isojax.core.config import Config, load_config
from isojax.core.machine import reserve_gpu_memory, silence_libtpu
from isojax.distributed.device_probe import device_memory, measure_rates
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.launch import device_budget
from isojax.launch.accelerator_report import (
    AcceleratorReport,
    KernelLine,
    MachineLine,
    ProgramLine,
)
from isojax.launch.device_budget import DeviceBudget
from isojax.launch.display import print_line
from isojax.launch.local.accelerator_shapes import COMMON_SETTINGS, largest_shape
from isojax.launch.local.compile_for_topology import compile_program
from isojax.launch.local.compile_here import program_bytes
from isojax.launch.local.compiled_times import compiled_times
from isojax.launch.local.measured_programs import RandomRun
from isojax.launch.local.setup import start_jax
from isojax.launch.local.topology_plan import planning_model, planning_task
from isojax.launch.measured_rates import FORMAT, ChipMeasurement, write_measurement
from isojax.launch.memory_model import SamplingPlan
from isojax.launch.planner import plan_cells
from isojax.launch.time_estimate import (
    CHIPS,
    GIB,
    DeviceRates,
    ProgramTimes,
    program_times,
    sampling_seconds,
    update_seconds,
)
from isojax.models.attention_autotune import attention_shapes, select_attention
from isojax.models.attention_calls import (
    AttentionShape,
    attention_seconds,
    implementations,
    unsupported_reason,
)
from isojax.models.describe_sizes import describe_sizes
from isojax.models.kernel_checks.attention_cases import case_of
from isojax.models.kernel_checks.device_kernels import kernels_to_check
from isojax.models.kernel_checks.kernel_errors import KernelCase, kernel_error
from isojax.tasks.task_defaults import with_task_defaults

PACKAGES = ("jax", "jaxlib", "libtpu")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def check_accelerator(config: Config | None, overrides: Sequence[str]) -> AcceleratorReport:
    """Check all kernels of the devices here, then measure a batch of a sweep.

    config: the sweep's; None: that of the largest shape of accelerator_shapes.py that fits, with
    these overrides. The rates of an accelerator are written to the file of its kind. InputError
    where the sweep cannot run here.
    """
    if config is None:
        silence_libtpu()
        reserve_gpu_memory()
        device = jax.devices()[0]
        gib = 0 if device.platform == "cpu" else (device_memory(device) or 0) / GIB
        shape = largest_shape(gib)
        settings = [*COMMON_SETTINGS, *shape.settings, f"name={shape.name}", *overrides]
        config = load_config(["quickstart"], settings)
    else:
        start_jax(config)

    machine = describe_machine()
    print_line(f"checking the kernels of {machine.devices}")
    kernels = list(check_kernels(jax.devices()[0].platform))
    sweep = MeasuredSweep(config)
    kernels += check_sweep_kernels(sweep)
    if all(line.is_right for line in kernels):
        return measure_sweep(sweep, AcceleratorReport(machine, kernels))
    # What a wrong kernel computes is no measure of anything.
    return AcceleratorReport(machine, kernels)


def describe_machine() -> MachineLine:
    """The devices and versions of this process."""
    devices = jax.devices()
    device = devices[0]
    versions = {"isojax": __version__}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):  # libtpu, where there is no TPU
            versions[package] = importlib.metadata.version(package)
    versions["Python"] = python_platform.python_version()
    versions["system"] = python_platform.platform()

    # What the runtime says of itself has lines such as "Built on Nov 12 2026".
    versions["runtime"] = " ".join(device.client.platform_version.split())
    if NVIDIA_DRIVER.is_file():
        versions["driver"] = NVIDIA_DRIVER.read_text().splitlines()[0].strip()
    memory = device_memory(device) or device_budget.host_memory()
    return MachineLine(
        date.today().isoformat(), device.device_kind, len(devices), memory / GIB, versions
    )


def check_kernels(platform: str) -> Iterator[KernelLine]:
    """Compare each kernel of a platform with float32; see device_kernels.py."""
    for checked in kernels_to_check(platform):
        line = check_kernel(checked.kernel, checked.what, checked.implementation, checked.case)
        print_line(str(line))
        yield line


def check_kernel(kernel: str, what: str, implementation: str, case: KernelCase) -> KernelLine:
    """Compare one kernel with float32 on one case."""
    try:
        error = kernel_error(case, implementation)
    # Whatever a compiler or a device says of one kernel, the others can be checked.
    except Exception as e:
        return KernelLine(kernel, what, failure=f"{type(e).__name__}: {str(e).splitlines()[0]}")
    return KernelLine(kernel, what, error.error, error.tolerance, error.output)


class MeasuredSweep:
    """A sweep as it is measured here: its smallest cell, synchronous, on these devices."""

    def __init__(self, config: Config):
        """Choose mesh and sizes as a run does. InputError where nothing fits."""
        devices = jax.devices()
        platform = devices[0].platform
        model = planning_model(config.cell.model)
        cell = with_task_defaults(config.cell).with_settings(model=model)
        vocab = model.vocab or planning_task(config.model_copy(update={"cell": cell})).vocab
        precision = cell.precision.for_platform(platform)
        if precision.compute == "float32":  # the default of accelerators has fewer bits
            jax.config.update("jax_default_matmul_precision", "highest")
        self.cell = cell.with_settings(
            model={"vocab": vocab}, precision=precision, rl={"max_staleness": None}
        )
        pairs = sorted({pair for cell in plan_cells(config.sweep) for pair in cell.pairs})
        self.pair = min(pairs, key=lambda pair: pair[0] * pair[1])

        accelerator_memory = device_memory(devices[0])
        memory = int(GIB * config.run.device_memory) if config.run.device_memory else None
        budget = DeviceBudget(
            self.cell,
            pairs=pairs,
            mesh=parse_mesh(config.run.mesh, len(devices)),
            policy=describe_sizes(self.cell.model, vocab),
            sampling=SamplingPlan(),
            backend=platform,
            device_memory=memory or accelerator_memory or device_budget.host_memory(),
        )
        if config.run.mesh == "auto":
            mesh = device_budget.fewest_devices_that_fit(config.sweep, budget, len(devices))
            budget = replace(budget, mesh=mesh or budget.mesh)
        self.budget = budget
        self.mesh: Mesh = make_mesh(budget.mesh, devices)
        sweep = device_budget.autosize_sweep(config.sweep, budget, is_new_run=True)
        self.config = config.model_copy(
            update={
                "cell": self.cell,
                "sweep": sweep.with_settings(schedules={}, moments_on_host=False),
            }
        )

    @property
    def platform(self) -> str:
        return self.budget.backend

    @property
    def keeps_rates(self) -> bool:
        """Whether plans read what is measured: all CPUs have one name, so each is
        measured again."""
        return self.platform != "cpu"


def check_sweep_kernels(sweep: MeasuredSweep) -> Iterator[KernelLine]:
    """Compare the kernels of attention with float32 at the sweep's shapes, and time them.

    Nothing on a CPU, which has no kernel to be compared with array code.
    """
    shapes = attention_shapes(sweep.cell, sweep.config.sweep, sweep.mesh)
    for shape in (*shapes.of_update, *shapes.of_sampler):
        names = implementations(shape, sweep.platform)
        for name in names if len(names) > 1 else ():
            line = _check_attention(shape, name)
            if line is not None:
                print_line(str(line))
                yield line


def _check_attention(shape: AttentionShape, implementation: str) -> KernelLine | None:
    """One implementation at a run's shape; None where it cannot serve the shape."""
    if unsupported_reason(shape, implementation):
        return None
    line = KernelLine(implementation, str(shape))
    if implementation != "plain":
        line = check_kernel(implementation, str(shape), implementation, case_of(shape))
    try:
        return replace(line, microseconds=1e6 * attention_seconds(shape, implementation))
    # Plain attention may not fit where kernels do; one that fails is wrong already.
    except Exception as e:
        return replace(line, note=f"{type(e).__name__}: {str(e).splitlines()[0]}")


def measure_sweep(sweep: MeasuredSweep, report: AcceleratorReport) -> AcceleratorReport:
    """The report with what a batch takes: measured, planned, and by the compiler."""
    fastest = select_attention(sweep.cell, sweep.config.sweep, sweep.mesh)
    config = sweep.config.model_copy(update={"sweep": fastest})
    s = sweep.budget.sizes(fastest, [sweep.pair])
    B_p, n = sweep.pair
    B = B_p * n

    probed = DeviceRates(
        *measure_rates(
            list(sweep.mesh.devices.flat),
            (s.shapes.slots, s.microbatch_tokens),
            s.D,
            s.mlp_width,
            s.cell.precision.compute,
        )
    )
    kind = report.machine.kind
    planned = program_times(s, CHIPS[kind][1] if kind in CHIPS else probed)
    print_line(f"measuring {config.name}, {B_p} x {n} rollouts")
    run = RandomRun(config, sweep.pair, sweep.mesh)
    measured = run.measure()
    compiled = _compiler_estimate(run, sweep)

    by_compiler = compiled.times
    programs = (
        ProgramLine(
            "sampling",
            measured.sampling_seconds,
            sampling_seconds(s, B_p, B, planned),
            by_compiler and sampling_seconds(s, B_p, B, by_compiler),
        ),
        ProgramLine(
            "update",
            measured.update_seconds,
            update_seconds(s, B_p, B, planned),
            by_compiler and update_seconds(s, B_p, B, by_compiler),
        ),
    )
    bound = program_times(s, replace(probed, efficiency=1.0))
    bound_seconds = sampling_seconds(s, B_p, B, bound) + update_seconds(s, B_p, B, bound)
    efficiency = bound_seconds / (measured.sampling_seconds + measured.update_seconds)
    stats = sweep.mesh.devices.flat[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use")
    report = replace(
        report,
        shape=f"{config.name}, {B_p} x {n} rollouts, {device_budget.format_sizes(fastest)}",
        attention=f"{fastest.forward_attention} (update), {fastest.decode_attention} (sampler)",
        programs=programs,
        compile_seconds=measured.compile_seconds,
        tokens=B * sweep.cell.sampling.response_length,
        sampler_logp_gap=measured.sampler_logp_gap,
        peak_gib=peak / GIB if peak else None,
        planned_gib=sweep.budget.estimate(fastest).peak / GIB,
        compiled_gib=compiled.peak_bytes / GIB,
        rates=replace(probed, efficiency=efficiency, origin="measured"),
    )
    if not sweep.keeps_rates:
        return report
    measurement = ChipMeasurement(
        format=FORMAT,
        kind=kind,
        measured_on=report.machine.day,
        decode_flops=probed.decode_flops,
        update_flops=probed.update_flops,
        bandwidth=probed.bandwidth,
        efficiency=efficiency,
        shape=report.shape,
        versions=report.machine.versions,
    )
    return replace(report, rates_file=write_measurement(measurement))


@dataclass(frozen=True)
class CompilerEstimate:
    """What the compiler says of a run's main programs."""

    peak_bytes: int  # of the largest, with what a run holds meanwhile
    times: ProgramTimes | None  # None where the compiler gives no cycles


def _compiler_estimate(run: RandomRun, sweep: MeasuredSweep) -> CompilerEstimate:
    """Ask the compiler for memory and, of a TPU, for cycles."""
    memory = sweep.budget.estimate(sweep.config.sweep)
    peaks, texts = {}, {}
    for name, (function, arguments) in run.main_programs().items():
        if sweep.platform == "tpu":
            program = compile_program(function, arguments)
            peaks[name], texts[name] = program.peak_bytes, program.hlo
        else:
            peaks[name] = program_bytes(function, arguments, sweep.platform)
    needed = [peak + memory.resident_bytes(name) for name, peak in peaks.items()]
    times = None
    if texts:
        kind = sweep.mesh.devices.flat[0].device_kind
        times = compiled_times(texts, sweep.cell, kind)
    return CompilerEstimate(max(needed), times)
