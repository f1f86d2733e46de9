"""How fast does bare TRL train? The other half of `update_vs_trl.py`, in TRL's own environment.

    .venv-trl/bin/python benchmarks/trl_reference.py JOB.json

JOB.json says model, prompts, answers and settings; the last line printed is JSON: the seconds of
each update, and the greedy accuracy after some of them, measured while the clock stands.

TRL runs at its best on a CPU: prompts are plain texts (no chat template to render), the whole batch
is one forward and backward pass, no gradient checkpointing, no reference model, no second pass for
old log-probabilities, no logging, no progress bar, the optimizer fused.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerState,
)

_EVALUATION_BATCH = 512


class Clock(TrainerCallback):
    """Notes the seconds of updates from end to end, without those of evaluations."""

    def __init__(self, job: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> None:
        self.job, self.tokenizer = job, tokenizer
        self.seconds: list[float] = []
        self.accuracies: list[tuple[int, float]] = []
        self._start_s = 0.0

    def on_train_begin(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        """Evaluates the start."""
        self._evaluate(0, model)

    def on_step_end(self, _: Any, state: TrainerState, *__: Any, **options: Any) -> None:
        """Ends an update, and evaluates where it is time."""
        self.seconds.append(time.perf_counter() - self._start_s)
        if state.global_step % self.job["evaluation_interval"] == 0:
            self._evaluate(state.global_step, options["model"])
        self._start_s = time.perf_counter()

    def _evaluate(self, step: int, model: torch.nn.Module) -> None:
        was_training = model.training
        model.eval()
        self.accuracies.append((step, compute_accuracy(model, self.tokenizer, self.job)))
        model.train(was_training)
        self._start_s = time.perf_counter()


@torch.no_grad()
def compute_accuracy(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, job: dict[str, Any]
) -> float:
    """Returns how many held-out prompts are answered exactly, greedily."""
    num_right = 0
    pairs = list(zip(job["test_prompts"], job["test_answers"], strict=True))
    for start in range(0, len(pairs), _EVALUATION_BATCH):
        prompts, answers = zip(*pairs[start : start + _EVALUATION_BATCH], strict=True)
        inputs = tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left")
        inputs.pop("token_type_ids", None)
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=job["max_new_tokens"])
        texts = tokenizer.batch_decode(
            ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        num_right += sum(map(str.__eq__, texts, answers))
    return num_right / len(pairs)


def is_right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Returns 1 for the exact answer, else 0: what the environment does."""
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


def make_config(job: dict[str, Any], folder: Path) -> trl.GRPOConfig:
    """Returns GRPO as the service has it, at TRL's best speed on a CPU."""
    batch = job["num_groups"] * job["group_size"]
    return trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        max_steps=job["num_updates"],
        learning_rate=job["lr"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        per_device_train_batch_size=batch,
        generation_batch_size=batch,
        num_generations=job["group_size"],
        max_completion_length=job["max_new_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="grpo",
        shuffle_dataset=False,
        seed=job["seed"],
        use_cpu=True,
        bf16=False,
        use_vllm=False,
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Trains for the job's updates and returns what the clock noted."""
    torch.set_num_threads(job["num_threads"])
    model = AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=torch.float32, attn_implementation=job["trl_attention"]
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(job["model"])
    rows = {"prompt": job["prompts"], "answer": job["answers"]}
    clock = Clock(job, tokenizer)
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=is_right,
        args=make_config(job, Path(job["model"]).parent),
        train_dataset=Dataset.from_dict(rows),
        processing_class=tokenizer,
        callbacks=[clock],
        peft_config=LoraConfig(
            r=job["rank"], lora_alpha=job["alpha"], target_modules="all-linear", lora_dropout=0.0
        ),
    )
    trainer.train()
    versions = {"trl": trl.__version__, "transformers": transformers.__version__}
    trainable = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    return {
        "seconds": clock.seconds,
        "accuracies": clock.accuracies,
        "num_trainable": trainable,
        "versions": {**versions, "torch": torch.__version__},
    }


if __name__ == "__main__":
    print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
