"""Bytes a device takes for a sweep: what of a device's sizes (device_sizes.py) XLA holds at the
same time.

    always     parameters, Adam's moments, the critic and its moments, in float32; the KL's
               reference, or the base policy beside LoRA, as products are computed; the rollouts
    sampling   weights as the sampler reads them; keys and values of slots and of the prompts'
               table; the rows that slots write (sampling_memory.py)
    update     the gradient as a sum, of a microbatch and of the prompts (or of both in one pass);
               what layers keep for it, of a block of prompts and of a microbatch; logits; then the
               new parameters and moments (update_memory.py)

What is held is known; what XLA needs between is estimated, and off by at most MEMORY_MARGIN of the
whole. benchmarks/memory.py compares the two.
"""

from dataclasses import dataclass

from isojax.core import shapes
from isojax.core.config.sweep import LOCAL_ROLLOUTS, SERVER_ROLLOUTS, RunConfig
from isojax.launch.device_sizes import (
    DeviceSizes,
    prompt_activations,
    response_activations,
)
from isojax.launch.device_weights import FLOAT_BYTES
from isojax.launch.sampling_memory import (
    merged_layer_bytes,
    moving_weight_bytes,
    sampling_weight_bytes,
    sampling_work_bytes,
    slot_bytes,
    stored_weight_bytes,
    transposed_layer_bytes,
)
from isojax.launch.update_memory import logits_bytes, update_bytes

# of a device's memory, which a plan leaves: what XLA allocates is that close to the estimate
MEMORY_MARGIN = 0.15


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one device."""

    breakdown: dict[str, int]  # by what they are for, such as "optimizer"; for people to read
    # by compiled program: "train" alone; or "learn", and, where a device samples and does not
    # verify, "weights" and "decode"
    program_bytes: dict[str, int]
    # the most at once while the sampler's weights are made, with all that a run holds
    weights_peak: int
    sampling_peak: int  # ... while it samples, in training and in an evaluation
    update_peak: int  # ... and in the update

    @property
    def peak(self) -> int:
        return max(self.sampling_peak, self.update_peak)

    def resident_bytes(self, program: str) -> int:
        """Bytes that a run holds while a program runs, beyond what XLA counts of that program.

        program: a key of `program_bytes`.
        """
        phase_peaks = {
            "train": self.peak,
            "weights": self.weights_peak,
            "decode": self.sampling_peak,
            "learn": self.update_peak,
        }
        return phase_peaks[program] - self.program_bytes[program]


@dataclass(frozen=True)
class SamplingPlan:
    """Who samples what, as far as it decides what devices hold."""

    on_device: bool = False  # whether the device verifies responses
    by_server: bool = False  # a server samples training, so that no device does
    evaluations_by_server: bool = False
    # A hook, or an engine of another kind, reads or makes the rollouts of training.
    leaves_the_program: bool = False


def plan_sampling(run: RunConfig, on_device: bool) -> SamplingPlan:
    """Who samples what by the run's settings. on_device: whether the device verifies responses.

    Whether a user's engine samples on these devices is not known: memory stays reserved for it.
    """
    return SamplingPlan(
        on_device=on_device,
        by_server=run.rollouts == SERVER_ROLLOUTS,
        evaluations_by_server=run.evaluations == SERVER_ROLLOUTS,
        leaves_the_program=run.on_update is not None or run.rollouts != LOCAL_ROLLOUTS,
    )


def estimate_memory(
    s: DeviceSizes, evaluation: DeviceSizes, plan: SamplingPlan, moments_on_host: bool = False
) -> MemoryEstimate:
    """What a sweep takes of each device, in bytes, by phase and by program.

    s: the sizes of training. evaluation: those of an evaluation, with the same policy and mesh.
    moments_on_host: whether what only the update reads (moments, critic) is in the host's memory
    while the device samples.
    """
    # In float32: parameters and Adam's two moments of each.
    trained_bytes = s.weights.trained_bytes
    frozen_bytes = s.weights.frozen_bytes
    weights_and_moments = 3 * (trained_bytes + s.critic_bytes) + frozen_bytes + s.reference_bytes
    rollouts = s.rollout_bytes + s.expert_record_bytes
    batch = rollouts + _problem_bytes(s, plan.on_device)
    # Dynamic sampling, which says how many batches are sampled for an update at most: a batch waits
    # while further ones are sampled, of which groups replace some of it (rl/inline_rollouts.py).
    replaces_groups = (s.cell.rl.dynamic_sampling or 1) > 1
    waiting_batch = rollouts + _prompt_bytes(s) if replaces_groups else 0

    # The sampler's weights and slots are there while it samples, not in the update, but for an
    # asynchronous run, below.
    sampler_weights = sampling_weight_bytes(s)
    sampler_state = sampler_weights + s.cache_bytes() + slot_bytes(s)
    max_staleness = s.cell.rl.max_staleness
    if max_staleness is not None:  # the batches that an asynchronous sampler has under way
        sampler_state += (max_staleness + 1) * (s.rollout_bytes + s.expert_record_bytes)

    update_peak = weights_and_moments + batch + update_bytes(s)

    # From here on, the device samples: the policy's moments, and the critic with its own, may be
    # on the host.
    held = weights_and_moments
    if moments_on_host:
        held -= 2 * trained_bytes + 3 * s.critic_bytes
    while_sampling = sampler_state + sampling_work_bytes(s)
    training_peak = held + batch + waiting_batch
    if not plan.by_server:
        training_peak += while_sampling
    if replaces_groups:
        # The program that replaces groups reads two batches and writes a third.
        training_peak = max(training_peak, held + batch + 2 * waiting_batch)

    # An evaluation has slots, keys and values and rollouts of other numbers; the training batch is
    # gone, or not made yet.
    evaluation_peak = held + evaluation.rollout_bytes
    evaluation_peak += _evaluation_problem_bytes(evaluation, plan.on_device)
    if not plan.evaluations_by_server:
        evaluation_peak += sampler_weights + evaluation.cache_bytes() + slot_bytes(evaluation)
        evaluation_peak += sampling_work_bytes(s)  # as in training: with as many slots and prompts

    is_one_program = plan.on_device and not (plan.leaves_the_program or replaces_groups)
    weights_peak = 0
    if is_one_program:
        program_bytes = {"train": max(training_peak, update_peak)}
    else:
        program_bytes = {"learn": update_peak}

    # A task that the device verifies has a sampler that reads the run's own weights; for any other
    # task, devices that sample make weights for it.
    if not plan.on_device and not (plan.by_server and plan.evaluations_by_server):
        made_weights = (
            stored_weight_bytes(s)
            + moving_weight_bytes(s)
            + merged_layer_bytes(s)
            + transposed_layer_bytes(s)
        )
        weights_peak = held + made_weights
        if not plan.by_server:
            # XLA counts a program's arguments too: the sampler's weights, and what decoding reads
            # unrolled of them. The run's own weights and moments are no argument of the sampler.
            unrolled_values = 0
            if s.has_unrolled_copy:
                unrolled_values = s.weights.layers_params + s.weights.table_params
            decode_arguments = stored_weight_bytes(s) + s.compute_bytes * unrolled_values
            program_bytes = {
                "weights": trained_bytes + frozen_bytes + made_weights,
                "decode": batch + while_sampling - sampler_weights + decode_arguments,
                **program_bytes,
            }

    if max_staleness is not None:
        # The sampler works while the trainer does, so that its state is always there.
        update_peak += sampler_state
        weights_peak += sampler_state
        evaluation_peak += sampler_state

    breakdown = _breakdown(s, evaluation, plan, rollouts + waiting_batch)
    sampling_peak = max(training_peak, evaluation_peak)
    return MemoryEstimate(breakdown, program_bytes, weights_peak, sampling_peak, update_peak)


def _breakdown(
    s: DeviceSizes, evaluation: DeviceSizes, plan: SamplingPlan, rollouts: int
) -> dict[str, int]:
    """Bytes by what they are for, which are not all held at the same time.

    Arguments as of `estimate_memory`; rollouts: bytes of those in memory at once.
    """
    # A server has its weights and cache elsewhere. Where it samples the rollouts alone, the device
    # still samples evaluations.
    sampler_weights = sampling_weight_bytes(s)
    if plan.by_server and plan.evaluations_by_server:
        cache = sampler_weights = 0
    elif plan.by_server:
        cache = evaluation.cache_bytes()
    else:
        cache = s.cache_bytes()

    return {
        "parameters": s.weights.trained_bytes + s.weights.frozen_bytes,
        "optimizer": 2 * s.weights.trained_bytes,
        "reference": s.reference_bytes,
        "critic": 3 * s.critic_bytes,
        "KV": cache,
        "sampling weights": sampler_weights,
        "rollouts": rollouts,
        "gradient": s.weights.trained_bytes,
        "activations": prompt_activations(s) + response_activations(s) + logits_bytes(s),
    }


def _problem_bytes(s: DeviceSizes, on_device: bool) -> int:
    """Bytes of the problems of training: int32[P] for a prompt, and two numbers of each.

    A device that verifies holds all problems, with answers of T tokens, and the indices of those
    that a call's updates take; else the device holds the prompts of a batch.
    """
    P = s.shapes.prompt_length
    T = s.shapes.response_length
    if not on_device:
        return _prompt_bytes(s)

    table = shapes.ASSUMED_TRAINING_PROBLEMS * (P + T + 2)
    chosen_problems = shapes.MAX_UPDATES_PER_CALL * s.shapes.problem_rows
    return FLOAT_BYTES * (table + chosen_problems)


def _prompt_bytes(s: DeviceSizes) -> int:
    """Bytes of the prompts of one batch: int32[P] and two numbers of each."""
    return FLOAT_BYTES * s.shapes.problem_rows * (s.shapes.prompt_length + 2)


def _evaluation_problem_bytes(evaluation: DeviceSizes, on_device: bool) -> int:
    """Bytes of an evaluation's problems, all in one batch; with answers if the device verifies."""
    answer = evaluation.shapes.response_length if on_device else 0
    return (
        FLOAT_BYTES
        * evaluation.shapes.problem_rows
        * (evaluation.shapes.prompt_length + answer + 2)
    )
