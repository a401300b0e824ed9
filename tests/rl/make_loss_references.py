"""Write tests/rl/loss_references.json: what TRL's and verl's own code makes of one ragged batch, in
float64. No test needs the peers.

Made with torch 2.13.0, trl 1.16.0 (transformers 5.23) and verl 0.9.1; in a fresh environment, from
the repository's root:

    python -m venv peers && peers/bin/pip install torch==2.13.0 trl==1.16.0 && peers/bin/pip
    download --no-deps verl==0.9.1 peers/bin/python tests/rl/make_loss_references.py
    verl-0.9.1-py3-none-any.whl

TRL: a real GRPOTrainer and RLOOTrainer of a random model of 3,000 parameters, whose rollouts,
rewards and log-probabilities are replaced by the batch's; then their own path from rollouts to
loss. verl: core_algos.py and torch_functional.py alone, because importing the package needs ray and
more; the names that they import and that are not called here are stubs.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import types
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

OUT = Path(__file__).parent / "loss_references.json"
N, T, VOCABULARY = 4, 8, 5
NUMBERS = {
    "low": 0.2,
    "high": 0.28,
    "kl": 0.3,
    "entropy": 0.05,
    "cap": 1.3,
    "gamma": 0.97,
    "lambda": 0.9,
    "value_clip": 0.2,
}
LOW, HIGH, KL, ENTROPY, CAP, GAMMA, LAMBDA, VALUE_CLIP = NUMBERS.values()


# --- the batch


def make_batch() -> dict[str, Any]:
    """5 problems of 4 responses of 1 to 8 tokens; the rewards of one are fractions, of another all
    the same."""
    draw = random.Random(6)
    rewards = [0, 1, 0, 0, 1, 1, 0, 1, 0.25, 0.5, 0, 0.75, 1, 1, 1, 1, 0, 0, 0, 1]
    lengths = [draw.randint(1, T) for _ in rewards]

    def ragged(centre: list[list[float]] | None, spread: float) -> list[list[float]]:
        base = centre or [[-1.5] * n for n in lengths]
        return [[round(x + draw.gauss(0, spread), 3) for x in row] for row in base]

    logps = ragged(None, 0.4)
    values = ragged([[0.4] * n for n in lengths], 0.3)
    return {
        "n": N,
        "T": T,
        "groups": [i // N for i in range(len(rewards))],
        "rewards": [float(r) for r in rewards],
        "logps": logps,
        "sampler": ragged(logps, 0.25),
        "base": ragged(logps, 0.5),
        "advantages": [round(draw.gauss(0, 1), 3) for _ in lengths],
        "token_advantages": ragged([[0.0] * n for n in lengths], 1.0),
        "values": values,
        "values_now": ragged(values, 0.3),
        "entropies": ragged([[1.0] * n for n in lengths], 0.2),
        "weights": {},  # of truncated importance sampling, which TRL fills in
        "logits": [[round(draw.gauss(0, 2), 3) for _ in range(VOCABULARY)] for _ in range(6)],
        "numbers": NUMBERS,
    }


def padded(rows: list[list[float]], grad: bool = False, fill: float = 0.0) -> torch.Tensor:
    return torch.tensor(
        [row + [fill] * (T - len(row)) for row in rows], dtype=torch.float64, requires_grad=grad
    )


def mask_of(batch: dict[str, Any]) -> torch.Tensor:
    return torch.tensor([[1] * len(row) + [0] * (T - len(row)) for row in batch["logps"]])


def unpadded(x: torch.Tensor, batch: dict[str, Any]) -> list[list[float]]:
    return [row[: len(of)] for row, of in zip(x.tolist(), batch["logps"], strict=True)]


def value_and_gradient(
    loss: torch.Tensor, of: torch.Tensor, batch: dict[str, Any]
) -> dict[str, Any]:
    loss.backward()
    assert of.grad is not None
    assert not (of.grad * (1 - mask_of(batch))).any(), "a padded position has a gradient"
    return {"loss": loss.item(), "gradient": unpadded(of.grad, batch)}


# --- TRL

# Names here -> attributes of GRPOTrainer. Its epsilon_high of CISPO is the bound itself, not what
# it is above 1.
GRPO_LOSSES: dict[str, dict[str, Any]] = {
    "grpo sequence": {"loss_type": "grpo"},
    "grpo token": {"loss_type": "bnpo"},
    "grpo constant": {"loss_type": "dr_grpo"},
    "dapo token": {"loss_type": "dapo"},
    "gspo sequence": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "gspo token": {"loss_type": "dapo", "importance_sampling_level": "sequence"},
    "cispo token": {"loss_type": "cispo", "epsilon_high": 1 + HIGH},
    "grpo token k3": {"loss_type": "dapo", "beta": KL},
    "grpo sequence k3": {"loss_type": "grpo", "beta": KL},
    "grpo token k3 entropy": {
        "loss_type": "dapo",
        "beta": KL,
        "_entropy_bonus_enabled": True,
        "entropy_coef": ENTROPY,
    },
}
TIS = {
    f"{level}_{mode}": f"{level} {mode}"
    for level in ("token", "sequence")
    for mode in ("truncate", "mask")
}


class Peer:
    """One of TRL's trainers, fed with the batch."""

    def __init__(
        self, batch: dict[str, Any], trainer: type, config: type, folder: str, **settings: Any
    ) -> None:
        from datasets import Dataset
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

        words = {"<pad>": 0, "<eos>": 1, "a": 2}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="a")),
            pad_token="<pad>",
            eos_token="<eos>",
        )
        shape = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
        }
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=3, eos_token_id=1, pad_token_id=0, **shape))
        rows = len(batch["rewards"])
        batching = {
            "num_generations": N,
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": 1,
        }
        args = config(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            report_to=[],
            beta=0.0,
            max_completion_length=T,
            **batching,
            **settings,
        )
        data = Dataset.from_dict({"prompt": ["a"] * rows})
        self.batch, self.rows = batch, rows
        self.trainer = trainer(
            model, lambda **_: [], args, train_dataset=data, processing_class=tokenizer
        )
        self.trainer.current_gradient_accumulation_steps = 1
        self.trainer.ref_model = object()  # distinguished from the policy by the stub below
        self.trainer._calculate_rewards = lambda *_: torch.tensor(
            batch["rewards"], dtype=torch.float64
        )[:, None]

    def run(self, grpo: bool, **attributes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The trainer's own inputs to its loss, and the loss with its gradient in the
        log-probabilities."""
        trainer, batch = self.trainer, self.batch
        before = {k: getattr(trainer, k) for k in attributes}
        logps = padded(batch["logps"], grad=True)
        base = padded(batch["base"])
        entropies = padded(batch["entropies"])

        def forward(model: Any, *_: Any, **__: Any) -> tuple[Any, Any, None]:
            if model is trainer.ref_model:
                return base, None, None
            return (logps if torch.is_grad_enabled() else logps.detach()), entropies, None

        trainer._get_per_token_logps_and_entropies = forward
        ids = [[2] * len(row) for row in batch["logps"]]
        completions = ["a" * len(row) for row in ids]
        prompts = [[2]] * self.rows
        trainer._generate = lambda _: (
            (prompts, ids, None, completions, batch["sampler"], {}, None, [])
            if grpo
            else (prompts, ids, completions)
        )
        for k, v in attributes.items():
            setattr(trainer, k, v)
        trainer.model.train()
        # TRL makes tensors of the sampler's log-probabilities, which are lists
        torch.set_default_dtype(torch.float64)
        inputs = trainer._generate_and_score_completions([{"prompt": "a"}] * self.rows)
        scored = {k: v.tolist() for k, v in inputs.items()}
        inputs["advantages"] = torch.tensor(batch["advantages"])
        if grpo and "importance_sampling_ratio" not in inputs:
            inputs["old_per_token_logps"] = padded(batch["sampler"])
        result = value_and_gradient(trainer._compute_loss(trainer.model, inputs), logps, batch)
        torch.set_default_dtype(torch.float32)
        for k, v in before.items():
            setattr(trainer, k, v)
        return result, scored


def run_trl(batch: dict[str, Any]) -> dict[str, Any]:
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
    from trl.trainer.utils import entropy_from_logits

    with tempfile.TemporaryDirectory() as folder:
        # By default its KL is multiplied by the ratio (DeepSeek-V3.2); the plain estimator is what
        # we have.
        grpo = Peer(batch, GRPOTrainer, GRPOConfig, folder, use_bias_correction_kl=False)
        rloo = Peer(batch, RLOOTrainer, RLOOConfig, folder)
        clip = {"epsilon_low": LOW, "epsilon_high": HIGH}
        losses = {
            name: grpo.run(True, **(clip | attributes))[0]
            for name, attributes in GRPO_LOSSES.items()
        }
        for mode, name in TIS.items():
            vllm = {
                "use_vllm": True,
                "vllm_importance_sampling_mode": mode,
                "vllm_importance_sampling_clip_max": CAP,
            }
            vllm |= {
                "vllm_importance_sampling_correction": True,
                "vllm_importance_sampling_clip_min": None,
            }
            for loss in (
                "grpo token",
                "cispo token",
                *(["gspo sequence"] if mode.startswith("sequence") else []),
            ):
                losses[f"{loss} tis {name}"], scored = grpo.run(
                    True, **(clip | GRPO_LOSSES[loss] | vllm)
                )
                batch["weights"][name] = scored["importance_sampling_ratio"]
        # the loss of a whole response, not of a token
        losses["rloo at ratio 1"], left_out = rloo.run(False)
        return {
            "version": version("trl"),
            "losses": losses,
            "group": grpo.run(True, scale_rewards="group")[1]["advantages"],  # over std + 1e-4
            "mean": grpo.run(True, scale_rewards="none")[1]["advantages"],
            "leave_one_out": left_out["advantages"],
            "entropy": entropy_from_logits(
                torch.tensor(batch["logits"], dtype=torch.float64)
            ).tolist(),
        }


# --- verl


def load_verl(wheel: Path) -> Any:
    """verl.trainer.ppo.core_algos out of the wheel, over stubs."""

    class Config(types.SimpleNamespace):
        """Stands for verl's configs: attributes, and `get`."""

        def get(self, name: str, default: Any = None) -> Any:
            return vars(self).get(name, default)

    def stub(name: str, **members: Any) -> types.ModuleType:
        sys.modules[name] = module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(members)
        return module

    stub("tensordict", TensorDict=None)
    stub("omegaconf", DictConfig=Config)
    for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.workers"):
        stub(name)
    utils = stub("verl.utils", as_torch_index=None, group_mean_std=None)
    stub("verl.utils.device", get_device_name=None, get_torch_device=None)
    stub("verl.utils.import_utils", deprecated=lambda *_: lambda f: f)
    stub("verl.trainer.config", AlgoConfig=type("AlgoConfig", (), {}))
    stub("verl.workers.config", ActorConfig=Config)
    with zipfile.ZipFile(wheel) as archive:
        for name in ("verl.utils.torch_functional", "verl.trainer.ppo.core_algos"):
            source = archive.read(name.replace(".", "/") + ".py")
            exec(compile(source, name, "exec"), vars(stub(name)))
            utils.torch_functional = sys.modules["verl.utils.torch_functional"]  # type: ignore[attr-defined]
    core = sys.modules["verl.trainer.ppo.core_algos"]
    core.Config = Config  # type: ignore[attr-defined]
    return core


def verl_losses(core: Any, batch: dict[str, Any], mask: torch.Tensor) -> dict[str, Any]:
    """Dual clipping is switched off by a bound that no ratio reaches; CISPO's lower bound by 0."""
    per_token = padded(batch["token_advantages"])
    per_response = torch.tensor(batch["advantages"], dtype=torch.float64)[:, None]
    sampler, held = padded(batch["sampler"]), padded(batch["logps"])
    mean_of_means = "seq-mean-token-mean"
    policies = {
        "ppo token": (
            core.compute_policy_loss_vanilla,
            LOW,
            per_token,
            sampler,
            "token-mean",
            None,
        ),
        "ppo sequence": (
            core.compute_policy_loss_vanilla,
            LOW,
            per_token,
            sampler,
            mean_of_means,
            None,
        ),
        "gspo sequence": (
            core.compute_policy_loss_gspo,
            LOW,
            per_response,
            sampler,
            mean_of_means,
            None,
        ),
        "cispo token": (
            core.compute_policy_loss_cispo,
            1.0,
            per_response,
            sampler,
            "token-mean",
            None,
        ),
    }
    # TRL's GSPO spreads a token's weight over its response
    for name in ("token truncate", "token mask"):
        weights = torch.tensor(batch["weights"][name], dtype=torch.float64)
        policies[f"gspo sequence tis {name}"] = (
            core.compute_policy_loss_gspo,
            LOW,
            per_response,
            held,
            mean_of_means,
            weights,
        )
    losses = {}
    for name, (function, low, advantages, old, mean, weights) in policies.items():
        config = core.Config(
            clip_ratio=None,
            clip_ratio_low=low,
            clip_ratio_high=HIGH,
            clip_ratio_c=1e9,
            global_batch_info={},
        )
        logps, full = padded(batch["logps"], grad=True), advantages.expand(len(mask), T)
        loss, _ = function(
            old, logps, full, mask, loss_agg_mode=mean, config=config, rollout_is_weights=weights
        )
        losses[name] = value_and_gradient(loss, logps, batch)
    now = padded(batch["values_now"], grad=True)
    loss, _ = core.compute_value_loss(
        now, per_token, padded(batch["values"]), mask, VALUE_CLIP, "token-mean"
    )
    # the returns are `token_advantages`
    losses["value token"] = value_and_gradient(loss, now, batch)
    for kind in ("k1", "k2", "k3"):
        logps = padded(batch["logps"], grad=True)
        loss = core.agg_loss(
            core.kl_penalty(logps, padded(batch["base"]), kind), mask, "token-mean"
        )
        losses[f"{kind} token"] = value_and_gradient(loss, logps, batch)
    return losses


def run_verl(batch: dict[str, Any], wheel: Path) -> dict[str, Any]:
    core = load_verl(wheel)
    mask, groups = mask_of(batch), batch["groups"]
    at_end = [
        [0.0] * (len(row) - 1) + [reward]
        for row, reward in zip(batch["logps"], batch["rewards"], strict=True)
    ]
    earned, config = padded(at_end), core.Config(gamma=1.0)
    whitened_gae, returns = core.compute_gae_advantage_return(
        earned, padded(batch["values"]), mask, GAMMA, LAMBDA
    )
    whitened, _ = core.compute_reinforce_plus_plus_outcome_advantage(earned, mask, config=config)
    first = torch.ones(
        len(mask), 1, dtype=torch.float64
    )  # one token per response: whitening then counts responses the same
    rewards = torch.tensor(batch["rewards"], dtype=torch.float64)[:, None]
    over_batch, _ = core.compute_reinforce_plus_plus_baseline_outcome_advantage(
        rewards, first, index=groups
    )
    outcome = {
        "group": core.compute_grpo_outcome_advantage(rewards.clone(), first, groups),
        "mean": core.compute_grpo_outcome_advantage(
            rewards.clone(), first, groups, norm_adv_by_std_in_grpo=False
        ),
        "leave_one_out": core.compute_rloo_outcome_advantage(rewards.clone(), first, groups),
    }
    return {
        "version": wheel.name.split("-")[1],
        "losses": verl_losses(core, batch, mask),
        "gae whitened": unpadded(whitened_gae, batch),
        "gae returns": unpadded(returns, batch),
        "whiten": unpadded(whitened, batch),
        "batch": over_batch[:, 0].tolist(),
        **{name: scores[:, 0].tolist() for name, (scores, _) in outcome.items()},
        "entropy": core.verl_F.entropy_from_logits(
            torch.tensor(batch["logits"], dtype=torch.float64)
        ).tolist(),
    }


def layout(x: Any, depth: int = 0) -> str:
    """JSON with a line for each list."""
    if not isinstance(x, dict):
        return json.dumps(x)
    inside = ",\n".join(
        " " * (depth + 1) + json.dumps(k) + ": " + layout(v, depth + 1) for k, v in x.items()
    )
    return "{\n" + inside + "\n" + " " * depth + "}"


def main() -> None:
    batch = make_batch()
    result = {"batch": batch, "trl": run_trl(batch), "verl": run_verl(batch, Path(sys.argv[1]))}
    OUT.write_text(layout(result) + "\n")
    print(
        f"{OUT}: {len(result['trl']['losses'])} losses of trl {result['trl']['version']}, "
        f"{len(result['verl']['losses'])} of verl"
    )


if __name__ == "__main__":
    main()
