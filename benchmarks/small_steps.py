"""How much of a few small steps over a bfloat16 base is computed?

    python benchmarks/small_steps.py
    python benchmarks/small_steps.py --steps 1 10 50 --lr 1e-5 --width 1024

One JSON line for each number of steps: the share of the exact change, <change, exact> / <exact,
exact>, in the last hidden states of one layer with random weights, over 1,512 random tokens. The
steps are GRPO's on random episodes. "nearest": W + s B A, rounded to the nearest. "fused": as the
engines fuse. "outputs": W x, rounded, plus s B A x, as PEFT's layers and vLLM's kernels do.
"native": as learner and transformers engine compute. "exact" is all in float32.
"""

import argparse
import json
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentpeft.envs import Outcome
from agentpeft.policies.delivery.version import LORA_A, LORA_B
from agentpeft.policies.engines.fusing import ServedEffect, merged_weight, target_names
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.messages import AdapterVersion, EpisodeGroup, Trajectory
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import (
    EnvRunnerSettings,
    LearnerSettings,
    Settings,
    TrainingSettings,
)

VOCAB, CPU = 512, torch.device("cpu")
Change = Callable[[nn.Linear, str, Tensor], None]


def make_model(width: int) -> Qwen2ForCausalLM:
    """Returns one layer of random weights, in bfloat16."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )
    return Qwen2ForCausalLM(config).to(torch.bfloat16).train(False)


def make_groups(seed: int) -> list[EpisodeGroup]:
    """Returns four groups of four random answers, a third of them rewarded."""
    rng, mask = np.random.default_rng(seed), np.ones(8, bool)
    logprobs = np.full(8, -1, np.float32)
    return [
        EpisodeGroup(
            number,
            f"task{number}",
            (),
            0,
            tuple(
                Trajectory(
                    prompt_ids=prompt,
                    token_ids=rng.integers(0, VOCAB, 8),
                    loss_mask=mask,
                    sampling_logprobs=logprobs,
                    turn_ends=(8,),
                    turn_rewards=(float(index % 3 == 0),),
                    outcome=Outcome.SUCCESS,
                )
                for index in range(4)
            ),
        )
        for number, prompt in enumerate(rng.integers(0, VOCAB, (4, 6)))
    ]


def states(model: nn.Module) -> Tensor:
    """Returns what the output layer would read of 24 random texts."""
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, VOCAB, (24, 63)))
    ids = ids.to(next(model.parameters()).device)
    with torch.no_grad():
        return model(input_ids=ids, output_hidden_states=True).hidden_states[-1].double().flatten()


def changed(model: Qwen2ForCausalLM, adapter: AdapterVersion, change: Change) -> Qwen2ForCausalLM:
    """Returns the model after `change` of each layer by its name and its exact change."""
    with torch.no_grad():
        for name in target_names(adapter):
            module = name.removesuffix(".weight")
            up, down = (
                torch.tensor(adapter.weights[f"base_model.model.{module}{part}"])
                for part in (LORA_B, LORA_A)
            )
            layer = model.get_submodule(module)
            change(layer, name, (up @ down * adapter.scaling).to(layer.weight.device))
    return model


def add_to_weights(layer: nn.Linear, _name: str, change: Tensor) -> None:
    """Rounds to the nearest, unless the layer is in float32."""
    layer.weight.copy_(layer.weight.float() + change)


def add_to_outputs(layer: nn.Linear, _name: str, change: Tensor) -> None:
    """Adds to what is rounded already."""
    layer.register_forward_hook(lambda _, args, y: y + (args[0].float() @ change.T).to(y.dtype))


def measure(num_steps: int, lr: float, width: int, device: torch.device = CPU) -> dict[str, float]:
    """Returns the shares by the way of computing."""
    settings = Settings.model_construct(  # without looking for an environment
        training=TrainingSettings(lr=lr),
        learners=LearnerSettings(autocast="bfloat16"),
        env_runners=EnvRunnerSettings(max_new_tokens=8),
    )
    random = make_model(width).to(device)
    policy = attach_lora(PolicyBase(random, None, "random"), settings.lora)
    learner = Learner(settings, policy)
    for seed in range(num_steps):
        learner.update(make_groups(seed))
    adapter = learner.adapter()

    def fuse(layer: nn.Linear, name: str, _change: Tensor) -> None:
        layer.weight.copy_(merged_weight(layer.weight, name, adapter, ServedEffect()))

    ways = {"nearest": add_to_weights, "fused": fuse, "outputs": add_to_outputs}
    plain, exact = states(make_model(width).to(device)), make_model(width).to(device).float()
    before = states(exact)
    truth = states(changed(exact, adapter, add_to_weights)) - before
    served = {
        n: states(changed(make_model(width).to(device), adapter, way)) for n, way in ways.items()
    }
    with policy.reference():
        native = states(policy.model)
    found = {name: each - plain for name, each in served.items()}
    found["native"] = states(policy.model) - native
    return {name: round(float(e @ truth / (truth @ truth)), 3) for name, e in found.items()}


def main() -> None:
    """Prints one JSON line for each number of steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--width", type=int, default=1024)
    arguments = parser.parse_args()
    for steps in arguments.steps:
        shares = measure(steps, arguments.lr, arguments.width)
        print(json.dumps({"steps": steps, "lr": arguments.lr, **shares}), flush=True)


if __name__ == "__main__":
    main()
