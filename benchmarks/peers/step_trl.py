"""TRL's GRPOTrainer: one step is rollouts by transformers' `generate`, rewards, advantages, update
with AdamW; float32, beta 0.

--variant rows=8: rollouts of a microbatch of the update (8 without it); all are sampled at once. No
gradient checkpointing, one iteration. The end token is one that the model never makes. Run alone
(prompts: `compare.py --commands`):

    .venv-peers/trl/bin/python benchmarks/peers/step_trl.py MODEL --prompts FILE --n 8 --new 128
"""

import tempfile
from typing import Any

import child

NEVER = "<jupyter_script>"


def main() -> None:
    args = child.arguments(__doc__)
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(child.threads())
    prompts = child.read_prompts(args.prompts)
    rollouts = len(prompts.ids) * args.n
    rows = int((args.variant or "rows=8").removeprefix("rows="))
    tokenizer = AutoTokenizer.from_pretrained(
        args.model, eos_token=NEVER, pad_token="<|endoftext|>", padding_side="left"
    )
    assert tokenizer(prompts.texts)["input_ids"] == prompts.ids
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.generation_config.eos_token_id = None

    def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
        assert all(len(ids) == args.new for ids in completion_ids), [
            len(ids) for ids in completion_ids
        ]
        return [child.reward(ids) for ids in completion_ids]

    class Timer(TrainerCallback):
        """Times a step, rollouts included; the first warms up."""

        def on_step_begin(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            self.clock = child.Clock()

        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step > 1:
                self.clock.add_tokens(rollouts * args.new)

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=rollouts // rows,
            num_generations=args.n,
            max_completion_length=args.new,
            num_iterations=1,
            beta=0.0,
            temperature=1.0,
            top_k=0,
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            max_steps=1 + args.repeats,
            shuffle_dataset=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        dataset = Dataset.from_dict({"prompt": prompts.texts})
        GRPOTrainer(
            model, rewards, config, dataset, processing_class=tokenizer, callbacks=[Timer()]
        ).train()


if __name__ == "__main__":
    main()
