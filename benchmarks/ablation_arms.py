"""What `ablations.py` compares: every experiment's arms, each some configs and overrides over the
quickstart.

All are on the quickstart's task, B_p = 32 problems per batch, with half of its held-out problems
and fewer evaluations, that an experiment takes minutes. Easy is the quickstart's own choice of
problems, Hard that of configs/hard.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from isojax.core.config.load import config_roots

SCALE = ("sweep.B_p=[32]", "sweep.n=[8]", "sweep.budget=56000", "cell.data.validation=1000")
EVALUATIONS = (
    "cell.eval.start=2048",
    "cell.eval.ratio=1.35",
    "cell.eval.panel=0",
    "cell.rl.measure_kl=true",
)
HARD = ("cell.data.candidates=12000", "cell.data.difficulty=[0.0,0.0625]")
NO_KL, NO_ENTROPY = "cell.rl.kl=0.0", "cell.rl.entropy=0.0"
WEAK = (
    "cell.rl.kl=0.001",
    "cell.rl.entropy=0.001",
)  # those of recipes/easy; the others' are the quickstart's, .5 and .01
EVERY_N = ("sweep.n=[4,16,64]", "sweep.B_max=2048", "sweep.budget=139000")
ANCHOR = "cell.rl.lr_reference_batch=256"
EIGHTFOLD = ("sweep.n=[64]", "sweep.B_max=2048", "sweep.budget=139000")


@dataclass(frozen=True)
class Arm:
    """A sweep: `configs` over the quickstart, `overrides` over these. `panel`: the set of axes it
    is drawn in."""

    label: str
    configs: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    panel: str = ""

    @property
    def folder(self) -> str:
        """The name of its sweep."""
        return re.sub(r"[^a-z0-9._]+", "-", f"{self.panel} {self.label}".lower()).strip("-")


@dataclass(frozen=True)
class Experiment:
    """Arms that are compared.

    Attributes:
        title: what is asked.
        arms: in the order they run.
        metrics: of training, drawn together with the reward.
        by_n: whether the n of one arm are what is compared.
    """

    title: str
    arms: tuple[Arm, ...]
    metrics: tuple[str, ...] = ()
    by_n: bool = False


def _recipes() -> tuple[Arm, ...]:
    """Every preset, as it is."""
    names = sorted(
        {path.stem for root in config_roots() for path in (root / "recipes").glob("*.yaml")}
    )
    return tuple(Arm(name, (f"recipes/{name}",)) for name in names)


def _regularisers(panel: str, data: Sequence[str]) -> tuple[Arm, ...]:
    quiet = "cell.rl.zero_variance_filter="
    kinds: dict[str, tuple[str, ...]] = {
        "KL + entropy": (),
        "KL": (NO_ENTROPY,),
        "entropy": (NO_KL,),
        "none": (NO_KL, NO_ENTROPY),
        "both, filtered": (f"{quiet}[kl,entropy]",),
        "all filtered": (f"{quiet}[policy,kl,entropy]",),
        "weak KL + entropy": WEAK,
        "entropy x 10": (NO_KL, "cell.rl.entropy=0.1"),
        "entropy x 10, filtered": (NO_KL, "cell.rl.entropy=0.1", f"{quiet}[entropy]"),
    }
    return tuple(Arm(label, (), (*data, *selected), panel) for label, selected in kinds.items())


EXPERIMENTS = {
    "recipes": Experiment(
        "Every recipe on the quickstart's problems",
        _recipes(),
    ),
    "fig3": Experiment(
        "Regularisers on Easy and on Hard (the paper's Fig. 3)",
        (*_regularisers("Easy", ()), *_regularisers("Hard", HARD)),
        ("entropy", "kl"),
    ),
    "fig4": Experiment(
        "The learning rate's rule (Fig. 4): rates at B = 256, and what each rule makes of 5e-4 "
        "at B = 2048",
        (
            *(
                Arm(
                    f"rate {rate:.3g}", (), (ANCHOR, f"cell.rl.learning_rate={rate:.3g}"), "B = 256"
                )
                for rate in (1.77e-4, 5e-4, 1.41e-3, 4e-3)
            ),
            *(
                Arm(
                    rule,
                    (),
                    (
                        ANCHOR,
                        *EIGHTFOLD,
                        "cell.rl.learning_rate=5e-4",
                        f"cell.rl.lr_scaling={rule}",
                    ),
                    "B = 2048",
                )
                for rule in ("constant", "sqrt", "linear")
            ),
            Arm(
                "rate 0.0113",
                (),
                (
                    ANCHOR,
                    *EIGHTFOLD,
                    "cell.rl.learning_rate=1.13e-2",
                    "cell.rl.lr_scaling=constant",
                ),
                "B = 2048",
            ),
        ),
    ),
    "fig25": Experiment(
        "Rollouts per problem under PPO and CISPO (Fig. 25)",
        (
            Arm("PPO", ("recipes/ppo",), EVERY_N, "Easy"),
            Arm("PPO", ("recipes/ppo",), (*EVERY_N, *HARD), "Hard"),
            Arm("CISPO", ("recipes/cispo",), EVERY_N, "Easy"),
        ),
        by_n=True,
    ),
    "fig26": Experiment(
        "Rollouts in the gradient / in the baseline (Fig. 26)",
        (
            Arm("32 / 32", (), ("sweep.n=[32]",)),
            Arm("8 / 32", (), ("sweep.n=[32]", "cell.rl.n_train=8")),
            Arm(
                "8 / 32, rate of 8 / 8",
                (),
                ("sweep.n=[32]", "cell.rl.n_train=8", "cell.rl.learning_rate=5e-4"),
            ),
            Arm("8 / 8", (), ("sweep.n=[8]",)),
        ),
    ),
}
