"""What `isojax accelerator` has found, as a text that fits into an issue, and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from isojax.core.atomic_files import write_text
from isojax.launch.time_estimate import DeviceRates

REPORT_TEXT = "accelerator.txt"
REPORT_JSON = "accelerator.json"


@dataclass(frozen=True)
class MachineLine:
    """The devices, and the versions of what computes on them."""

    day: str  # such as 2026-11-30
    kind: str  # as jax names the device, such as "TPU v5 lite"
    count: int
    gib: float  # memory of a device; of a CPU the machine's
    versions: dict[str, str]

    @property
    def devices(self) -> str:
        return f"{self.count} x {self.kind}"


@dataclass(frozen=True)
class KernelLine:
    """A kernel on one case: its largest error from float32, and how large it may be.

    Both are None of array code, and of a kernel that failed."""

    kernel: str
    what: str  # the case
    error: float | None = None
    tolerance: float | None = None
    output: str = ""  # the output with this error
    failure: str = ""  # what the compiler or the device said
    microseconds: float | None = None  # of a call at the run's shape
    note: str = ""

    @property
    def is_right(self) -> bool:
        if self.failure:
            return False
        if self.error is None or self.tolerance is None:
            return True  # array code, which is not compared
        return self.error <= self.tolerance  # an error that is not a number is not

    def __str__(self) -> str:
        if self.failure:
            return f"WRONG  {self.kernel}: {self.what}: {self.failure}"
        parts = []
        if self.error is not None:
            parts.append(f"{self.error:.1e} from float32 (at most {self.tolerance:.1e})")
            if not self.is_right:
                parts.append(f"in {self.output}")
        if self.microseconds is not None:
            parts.append(f"{self.microseconds:,.0f} us")
        parts += filter(None, [self.note])
        verdict = "right" if self.is_right else "WRONG"
        return f"{verdict}  {self.kernel}: {self.what}: {', '.join(parts)}"


@dataclass(frozen=True)
class ProgramLine:
    """The seconds of a part of a batch."""

    name: str
    measured: float
    planned: float
    by_compiler: float | None  # None where it gives none

    def __str__(self) -> str:
        by_compiler = "" if self.by_compiler is None else f", {self.by_compiler:.3g} s by compiler"
        return f"{self.name}: {self.measured:.3g} s, {self.planned:.3g} s planned{by_compiler}"


@dataclass(frozen=True)
class AcceleratorReport:
    """All of it; what comes after the kernels is empty where one of them is wrong."""

    machine: MachineLine
    kernels: Sequence[KernelLine]
    shape: str = ""  # of the model and batch, and the sizes
    attention: str = ""  # which the run would use
    programs: Sequence[ProgramLine] = ()
    compile_seconds: float = 0.0
    tokens: int = 0  # of all responses of the batch
    sampler_logp_gap: float = 0.0
    peak_gib: float | None = None  # None where the device does not say
    planned_gib: float = 0.0
    compiled_gib: float = 0.0
    rates: DeviceRates | None = None
    rates_file: Path | None = None  # None of a CPU

    @property
    def wrong_kernels(self) -> list[KernelLine]:
        return [line for line in self.kernels if not line.is_right]

    def lines(self) -> Iterator[str]:
        """The report, line by line."""
        machine = self.machine
        yield f"isojax accelerator, {machine.day}: {machine.devices}, {machine.gib:.4g} GiB each"
        yield "; ".join(f"{name} {version}" for name, version in machine.versions.items())
        yield from map(str, self.kernels)
        if self.rates is None:
            return

        yield self.shape
        yield f"attention: {self.attention}; compiling took {self.compile_seconds:.3g} s"
        for program in self.programs:
            yield f"{program}; {self.tokens / program.measured:,.0f} response tokens/s"
        peak = "" if self.peak_gib is None else f"{self.peak_gib:.3g} GiB at the peak, "
        yield (
            f"memory of a device: {peak}{self.planned_gib:.3g} GiB planned,"
            f" {self.compiled_gib:.3g} GiB by compiler"
        )
        yield f"gap of log-probabilities, sampler and trainer: {self.sampler_logp_gap:.2g}"
        rates = self.rates
        yield (
            f"rates: {rates.decode_flops / 1e12:.3g} TFLOP/s of few rows,"
            f" {rates.update_flops / 1e12:.3g} TFLOP/s of many, {rates.bandwidth / 1e9:.4g} GB/s;"
            f" a batch reaches {rates.efficiency:.0%} of them"
        )

    def write(self, folder: Path) -> None:
        """Write both files; errors as of `write_text`."""
        write_text(folder / REPORT_TEXT, "\n".join(self.lines()) + "\n")
        document = {**asdict(self), "rates_file": str(self.rates_file or "")}
        write_text(folder / REPORT_JSON, json.dumps(document, indent=1) + "\n")
