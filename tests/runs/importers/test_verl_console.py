"""verl's console log: steps among what else is printed, and the settings that it prints."""

from __future__ import annotations

import gzip
import time

import pytest

from isojax.core.nouns import Cell
from isojax.runs.logs.import_logs import read_logs
from tests.refusals import refused

RAY = "\x1b[36m(TaskRunner pid=71)\x1b[0m "
COMMAND = (
    "++ python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.rollout.n=5 "
    "trainer.nnodes=1"
)
CONFIG = f"""\
{RAY}{{'actor_rollout_ref': {{'actor': {{'optim': {{'lr': 1e-06}}}},
\x1b[36m(WorkerDict pid=80)\x1b[0m a line of another process {{
{RAY}                       'rollout': {{'n': 8, 'name': 'vllm'}}}},
{RAY} 'data': {{'train_batch_size': 32, 'val_files': None}},
{RAY} 'trainer': {{'experiment_name': 'qwen-n8', 'n_gpus_per_node': 4, 'nnodes': 2}}}}
"""
VALIDATION = "val-core/openai/gsm8k/reward/mean@1"


def step_line(step: int) -> str:
    trained = (
        f"critic/rewards/mean:{0.1 + step / 100:.3f} - response_length/mean:100.000 - "
        "perf/time_per_step:36.000"
    )
    validated = f"{VALIDATION}:{0.2 + step / 100:.3f}"
    parts = [trained] * (step > 0) + [validated] * (step % 2 == 0)
    return f"{RAY}step:{step} - {' - '.join(parts)}\n"


STEPS = "".join(step_line(step) for step in range(7))
NOISE = (
    f"{RAY}Training Progress:   1%|          | 1/105 [03:49<6:37:06, 229.10s/it]\n{RAY}step: not "
    "this - one:1\n"
)


def test_the_printed_config_and_the_steps(tmp_path):
    with gzip.open(tmp_path / "job.log.gz", "wt") as f:
        f.write(COMMAND + "\n" + CONFIG + NOISE + STEPS + NOISE)
    (run,) = read_logs([tmp_path / "job.log.gz"], None, {}).runs
    assert run.cell == Cell(32, 8, 0) and [p.M for p in run.points] == [0, 2, 4, 6]
    assert [p.rollouts for p in run.points] == [0, 512, 1024, 1536]
    assert [p.metrics for p in run.points] == [
        {"avg@1": pytest.approx(0.2 + M / 100)} for M in (0, 2, 4, 6)
    ]
    assert run.points[1].train["reward"] == pytest.approx(0.115) and run.points[3].tokens == 153_600
    assert run.device_hours == pytest.approx([0.0, 0.16, 0.32, 0.48])  # 36 s on 8 devices a step


def test_the_command_line_where_no_config_is_printed(tmp_path):
    (tmp_path / "job.log").write_text(COMMAND + "\n" + NOISE + STEPS)
    (run,) = read_logs([tmp_path / "job.log"], "verl_console", {}).runs
    # the devices of a node are not said
    assert run.cell == Cell(64, 5, 0) and run.device_hours == ()


def test_numbers_as_numpy_prints_them(tmp_path):
    text = (
        COMMAND
        + "\n"
        + f"step:0 - {VALIDATION}:np.float64(0.25)\nstep:1 - {VALIDATION}:np.float64(0.5) - a:'b'\n"
    )
    (tmp_path / "job.log").write_text(text)
    (run,) = read_logs([tmp_path / "job.log"], None, {}).runs
    assert [p.metrics["avg@1"] for p in run.points] == [0.25, 0.5]


def test_a_line_that_is_still_written_counts_as_far_as_it_is_whole(tmp_path):
    torn = step_line(8).rstrip("\n")[:-2]  # validation 0.28 as "0."
    (tmp_path / "job.log").write_text(CONFIG + STEPS + torn)
    result = read_logs([tmp_path / "job.log"], None, {})
    assert [p.M for p in result.runs[0].points] == [0, 2, 4, 6]
    assert any("last line is torn" in note for note in result.notes)


def test_a_log_without_steps_is_refused(tmp_path):
    (tmp_path / "job.log").write_text(CONFIG + NOISE)
    with refused(where="job.log"):
        read_logs([tmp_path / "job.log"], "verl_console", {})


def test_a_log_without_settings_says_what_to_type(tmp_path):
    (tmp_path / "job.log").write_text(STEPS)
    with refused(where="job.log"):
        read_logs([tmp_path / "job.log"], "verl_console", {})


def test_what_only_looks_like_a_config_is_tried_a_hundred_times(tmp_path):
    lines = "".join("{'a': '\\frac{1'\n" for _ in range(20_000))
    (tmp_path / "run.log").write_text(CONFIG + "".join(map(step_line, range(5))) + lines)
    (tmp_path / "other.log").write_text(lines + CONFIG + "".join(map(step_line, range(5))))
    before = time.process_time()
    assert read_logs([tmp_path / "run.log"], "verl_console", {}).runs[0].cell == Cell(32, 8, 0)
    with refused(where="other.log"):
        read_logs([tmp_path / "other.log"], "verl_console", {})
    assert time.process_time() - before < 20.0


def test_spaces_take_no_time(tmp_path):
    (tmp_path / "run.csv").write_text("step,reward,n,B_p\n" + " " * 10**6 + "1,.1,4,2\n")
    before = time.process_time()
    assert read_logs([tmp_path / "run.csv"], None, {}).runs[0].cell == Cell(2, 4, 0)
    assert time.process_time() - before < 5.0


def test_what_only_begins_like_a_prefix_takes_no_time(tmp_path):
    (tmp_path / "job.log").write_text(
        "(pid=1 " * 50_000 + "\n(a" + " b" * 50_000 + "\n" + COMMAND + "\n" + STEPS
    )
    before = time.process_time()
    assert read_logs([tmp_path / "job.log"], None, {}).runs[0].cell == Cell(64, 5, 0)
    assert time.process_time() - before < 5.0


def prefixed(prefix: str) -> str:
    """A whole log, each line behind what a machine's own log puts before it."""
    return "".join(
        prefix.replace("SECOND", f"{i % 60:02}") + line
        for i, line in enumerate((CONFIG + STEPS).splitlines(True))
    )


BAR = "  5%|#  | 5/105 [03:49<6:37:06, 229.10s/it]"
PREFIXES = {
    "kubectl": "2026-11-26T12:00:SECOND.123456789Z ",
    "ts": "Nov  6 12:00:SECOND ",
    "srun -l": "0: ",
    "torchrun": "[rank0]: ",
    "mpirun": "[1,0]<stdout>: ",
    "logging": "[2026-11-26 12:00:SECOND,123] ",
    "times": "12:00:SECOND ",
    "Kubernetes' files": "2026-11-26T12:00:SECOND.123456789Z stdout F ",
    "docker compose": "trainer-1  | ",
    "a bar without an end of line": f"\rTraining Progress:{BAR}",
    "a bar, and the cursor one line up": f"Processed:{BAR}\x1b[A",
    "a bar before a return": f"Training Progress:{BAR}\r",
}


@pytest.mark.parametrize("name", PREFIXES)
def test_what_stands_before_the_lines(tmp_path, name):
    text = prefixed(PREFIXES[name])
    if name.startswith("a bar"):  # Ray's prefix stands before the bar, and the config has none
        text = CONFIG + "".join(
            RAY + PREFIXES[name] + line.removeprefix(RAY) for line in STEPS.splitlines(True)
        )
    (tmp_path / "job.log").write_text(text)
    (run,) = read_logs([tmp_path / "job.log"], None, {}).runs
    assert run.cell == Cell(32, 8, 0) and [p.M for p in run.points] == [0, 2, 4, 6]


def test_bytes_that_are_no_text_and_output_before_a_step(tmp_path):
    """As when a process prints half a character, or ends no line."""
    lines = (
        (CONFIG + STEPS).replace(f"{RAY}step:4", f"{RAY}saved. step:4").encode().splitlines(True)
    )
    lines.insert(-1, f"{RAY}[response] think step:1 - compute: 3\n".encode())
    (tmp_path / "job.log").write_bytes(lines[0] + b"\xe2\x96 \0\n" + b"".join(lines[1:]))
    (run,) = read_logs([tmp_path / "job.log"], None, {}).runs
    assert run.cell == Cell(32, 8, 0) and [p.M for p in run.points] == [0, 2, 4, 6]


def test_a_step_that_samples_several_batches_counts_them_all(tmp_path):
    """With dynamic sampling: 3 batches of 96 prompts x 8 in steps 1 to 3, then 1."""
    config = CONFIG.replace(
        "'train_batch_size': 32", "'train_batch_size': 32, 'gen_batch_size': 96"
    )
    steps = [
        step_line(step).rstrip("\n") + f" - train/num_gen_batches:{3 if step < 4 else 1}\n"
        for step in range(1, 7)
    ]
    (tmp_path / "job.log").write_text(config + step_line(0) + "".join(steps))
    (run,) = read_logs([tmp_path / "job.log"], None, {}).runs
    assert [p.rollouts for p in run.points] == [96 * 8 * batches for batches in (0, 6, 10, 12)]
    assert [p.M for p in run.points] == [0, 2, 4, 6] and run.cell == Cell(32, 8, 0)


def test_runs_of_two_settings_in_one_file_are_refused(tmp_path):
    (tmp_path / "job.log").write_text(CONFIG + STEPS + CONFIG.replace("'n': 8", "'n': 16") + STEPS)
    with refused(where="job.log"):
        read_logs([tmp_path / "job.log"], None, {}, resumed=True)
    failed = CONFIG.replace("'n': 8", "'n': 16")  # it ended before its first step
    (tmp_path / "job.log").write_text(failed + CONFIG + STEPS + failed)
    (run,) = read_logs([tmp_path / "job.log"], None, {}).runs
    assert run.cell == Cell(32, 8, 0)
    (tmp_path / "job.log").write_text(
        COMMAND + "\n" + STEPS + COMMAND.replace("n=5", "n=16") + "\n" + step_line(8)
    )
    with refused(where="job.log"):
        read_logs([tmp_path / "job.log"], None, {}, resumed=True)
    (tmp_path / "job.log").write_text(
        CONFIG + STEPS + CONFIG + step_line(6) + step_line(7) + step_line(8)
    )
    (run,) = read_logs([tmp_path / "job.log"], None, {}, resumed=True).runs
    assert [p.M for p in run.points] == [0, 2, 4, 6, 8]


def test_a_line_that_another_process_goes_on_with_is_two(tmp_path):
    """Ray's processes write at once, so that a line of one ends where one of another begins: in the
    config, or before a step; an older Ray writes the worker's group and name."""
    other = (
        "\x1b[36m(pid=80)\x1b[0m \n\x1b[36m(xQkWorkerDict_0:0 WorkerDict pid=80)\x1b[0m {'a': 1}\n"
        "\n"
    )
    config = CONFIG.replace("'qwen-n8', ", f"'qwen-n8',{other}{RAY}  ")
    steps = STEPS.replace(f"{RAY}step:4", f"(WorkerDict pid=80, ip=10.0.0.2) saving{RAY}step:4")
    assert config != CONFIG and steps != STEPS
    (tmp_path / "job.log").write_text(config + steps)
    (run,) = read_logs([tmp_path / "job.log"], None, {}).runs
    assert run.cell == Cell(32, 8, 0) and [p.M for p in run.points] == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("config", "n"),
    [
        (CONFIG.replace("'n': 8", "'n': 1, 'n_agent': 5"), 5),
        (CONFIG.replace("'n': 8", "'n': 4, 'n_agent': 1"), 4),
        (
            CONFIG.replace("'n': 8", "'n': 1").replace(
                " 'data'", " 'env': {'rollout': {'n': 6}}, 'data'"
            ),
            6,
        ),
        (COMMAND.replace("rollout.n=5", "rollout.n_agent=3") + "\n", 3),
        (CONFIG.replace("'n': 8", "'n': 1, 'n_repeat': 5"), 5),
        (CONFIG.replace("'n': 8", "'n': 1, 'n_trajectories': 8"), 8),
        (
            CONFIG.replace("'n': 8", "'n': 1").replace(
                " 'data'", " 'rollout_manager': {'n_trajectory': 4}, 'data'"
            ),
            4,
        ),
    ],
)
def test_forks_that_repeat_a_problem_before_verl_does(tmp_path, config, n):
    """Search-R1, verl-agent, Agent-R1, OpenHands and VAGEN keep rollout.n = 1, and have a group's
    size elsewhere."""
    (tmp_path / "job.log").write_text(config + STEPS)
    (run,) = read_logs([tmp_path / "job.log"], None, {}).runs
    assert run.cell.n == n and run.points[-1].rollouts == 6 * run.cell.B_p * n
    (tmp_path / "job.log").write_text(config + STEPS + config.replace("_agent=3", "_agent=7"))
    if "_agent=3" in config:
        with refused(where="job.log"):
            read_logs([tmp_path / "job.log"], None, {})


@pytest.mark.parametrize(
    ("data", "B_p"),
    [
        ("'gen_batch_size': 8", 8),
        ("'gen_batch_size': None", 32),
        ("'oversample_factor': 4.0", 128),
        ("'x': 1}, 'es_manager': {'train': {'env_groups': 4, 'group_size': 8}", 4),
    ],
)
def test_the_batches_that_verl_and_its_forks_sample(tmp_path, data, B_p):
    (tmp_path / "job.log").write_text(CONFIG.replace("'val_files': None", data) + STEPS)
    (run,) = read_logs([tmp_path / "job.log"], None, {}).runs
    assert run.cell == Cell(B_p, 8, 0) and run.points[-1].rollouts == 6 * B_p * 8


def test_the_devices_of_a_sampler_count(tmp_path):
    pools = " 'rollout': {'nnodes': 1, 'n_gpus_per_node': 2}, 'trainer'"
    (tmp_path / "job.log").write_text(CONFIG.replace(" 'trainer'", pools) + STEPS)
    (run,) = read_logs([tmp_path / "job.log"], None, {}).runs
    assert run.devices == 10


def test_a_batch_of_0_is_a_setting_that_is_not_used(tmp_path):
    """As in verl's fully asynchronous trainer."""
    (tmp_path / "job.log").write_text(
        CONFIG.replace("_batch_size': 32", "_batch_size': 0, 'gen_batch_size': 1") + STEPS
    )
    with refused(where="job.log"):
        read_logs([tmp_path / "job.log"], None, {})
    (run,) = read_logs([tmp_path / "job.log"], None, {"B_p": "16"}).runs
    assert run.cell == Cell(16, 8, 0)


def test_two_runs_in_one_file_are_to_be_split(tmp_path):
    (tmp_path / "job.log").write_text(CONFIG + STEPS + CONFIG + STEPS)
    with refused(where="job.log, line 18"):
        read_logs([tmp_path / "job.log"], None, {})
    with refused(where="job.log, line 18"):
        read_logs([tmp_path / "job.log"], None, {}, resumed=True)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_lines_that_a_terminal_has_wrapped_are_refused(tmp_path, width):
    """A cut value is another number: .67 of .672. One such line may be another program's, and is
    noted."""
    steps = STEPS.replace(RAY, "").replace(
        " - response", " - actor/lr:np.float64(1e-06) - response"
    )
    wrapped = "".join(
        line[i : i + width] + "\n"
        for line in steps.splitlines()
        for i in range(0, len(line), width)
    )
    (tmp_path / "job.log").write_text(CONFIG + wrapped)
    with refused():
        read_logs([tmp_path / "job.log"], None, {}, resumed=True)
    longest = max(steps.splitlines(), key=len)
    (tmp_path / "job.log").write_text(
        CONFIG + steps.replace(longest, f"{longest[:width]}\n{longest[width:]}")
    )
    notes = [
        note
        for note in read_logs([tmp_path / "job.log"], None, {}, resumed=True).notes
        if "wrapped" in note
    ]
    assert len(notes) == 1


@pytest.mark.parametrize(
    "between", ["12:00 - INFO: saved to /x\n", "epoch:3\n", f"{RAY}timing/x:0.5\n", NOISE, "\n"]
)
def test_other_lines_between_steps_are_no_rest(tmp_path, between):
    (tmp_path / "job.log").write_text(CONFIG + between.join(STEPS.splitlines(True)))
    assert not any("wrapped" in note for note in read_logs([tmp_path / "job.log"], None, {}).notes)
    (tmp_path / "job.log").write_text(
        CONFIG + between.join(STEPS.replace(RAY, "").splitlines(True))
    )
    assert not any("wrapped" in note for note in read_logs([tmp_path / "job.log"], None, {}).notes)


def test_settings_that_return_are_split_where_they_change(tmp_path):
    configs = [CONFIG.replace("'n': 8", f"'n': {n}") for n in (16, 8, 16)]
    (tmp_path / "job.log").write_text("".join(config + STEPS for config in configs))
    with refused(where="job.log"):
        read_logs([tmp_path / "job.log"], None, {})
