"""The README's plan of a 7B model: its line, and what the script reads of such a plan."""

from __future__ import annotations

from benchmarks.readme_plan import read_plan, readme_command

# As it was printed for that line.
PLAN = """\
it fits, by the compiler's figures: 1 run at once, 16 of the 16 chips of v5e:4x4 (TPU v5 lite, 15.8 GiB
each), mesh fsdp=4,tensor=4; 17 evaluations per run, the last at C = 209658
sizes of each shard, chosen where they are not set: sweep.decode_slots=64 sweep.microbatch=16
sweep.prefill_batch=8 sweep.slots_per_prefix=1 sweep.remat=layer
memory of a device, the same for every run: parameters 1.77 GiB, optimizer 3.55 GiB, gradient 1.77 GiB,
activations 2.72 GiB; 10.6 GiB at the peak of sampling and 12.8 GiB at the update's, of 15.8 GiB
time: 21.7 h for the sweep, from a lower bound at 35% efficiency, all responses of full length
"""


def test_what_the_script_reads_of_a_plan() -> None:
    assert read_plan(PLAN) == {
        "fits": True,
        "sampling_gib": 10.6,
        "update_gib": 12.8,
        "device_gib": 15.8,
        "sizes": {
            "decode_slots": "64", "microbatch": "16", "prefill_batch": "8", "slots_per_prefix": "1", "remat": "layer",
        },
        "sweep_takes": "21.7 h",
    }  # fmt: skip


def test_it_runs_the_line_of_the_readme() -> None:
    words = ["launch", "gsm8k", "models/qwen2.5-7b-instruct", "--dry-run", "--topology", "v5e:4x4"]
    assert readme_command() == [*words, "--mesh", "fsdp=4,tensor=4"]
