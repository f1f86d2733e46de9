"""An update of TRL's `GRPOTrainer` over given episodes: its loss, gradients, clipping, AdamW."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agentpeft.policies.messages import EpisodeGroup, Trajectory


def make_update(
    model: PreTrainedModel,
    groups: Sequence[EpisodeGroup],
    rank: int,
    max_tokens: int,
    folder: Path,
) -> Callable[[], None]:
    """Returns what takes an update, with as many whole sequences at a time as fit `max_tokens`."""
    device = next(model.parameters()).device
    episodes = [each for group in groups for each in group.trajectories]
    rewards = [[each.episode_return for each in group.trajectories] for group in groups]
    values = torch.tensor(rewards)
    deviations = values.std(1, keepdim=True) + 1e-4
    advantages = ((values - values.mean(1, keepdim=True)) / deviations).flatten()
    longest = max(len(each.prompt_ids) + len(each.token_ids) for each in episodes)
    size = max(1, max_tokens // longest)
    batches = [
        _inputs(episodes[start : start + size], advantages[start : start + size], device)
        for start in range(0, len(episodes), size)
    ]
    trainer = _make_trainer(model, rank, folder)
    trainer.current_gradient_accumulation_steps = len(batches)
    network = trainer.model.train()
    parameters = [each for each in network.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0, fused=True)

    def update() -> None:
        optimizer.zero_grad()
        for inputs in batches:
            trainer.compute_loss(network, inputs).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return update


def _inputs(
    episodes: Sequence[Trajectory], advantages: torch.Tensor, device: torch.device
) -> dict[str, Any]:
    """Returns what TRL makes of a batch: prompts padded on the left, answers on the right."""
    prompts = [torch.from_numpy(each.prompt_ids) for each in episodes]
    answers = [torch.from_numpy(each.token_ids) for each in episodes]
    pad = torch.nn.utils.rnn.pad_sequence
    inputs = {"advantages": advantages}
    for name, rows, side in (("prompt", prompts, "left"), ("completion", answers, "right")):
        options: dict[str, Any] = {"batch_first": True, "padding_side": side}
        inputs[f"{name}_ids"] = pad(rows, **options)
        inputs[f"{name}_mask"] = pad([torch.ones_like(row) for row in rows], **options)
    inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    return {name: value.to(device) for name, value in inputs.items()}


def _make_trainer(model: PreTrainedModel, rank: int, folder: Path) -> trl.GRPOTrainer:
    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
    )
    config = trl.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        num_generations=2,
        beta=0.0,
        loss_type="grpo",
        gradient_checkpointing=False,
        bf16=True,
        use_cpu=model.device.type == "cpu",
        report_to="none",
        disable_tqdm=True,
    )
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 2}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"),
    )
