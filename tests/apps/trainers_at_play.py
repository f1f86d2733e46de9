"""Plays the oracle's episodes through a trainer that plays by tokens; run beside `.venv-trainers`.

`python trainers_at_play.py LIBRARY MODEL [URL]` prints JSON: returns, and all that was observed.
`MODEL` is a folder with a tokenizer, `URL` a server of `GAME`.
"""

import json
import sys

import gymnasium
import numpy as np
from transformers import AutoTokenizer

from agentpeft.policies.rollout.chat import ChatFormat

GAME, NUM_TASKS, MAX_TOKENS = "AgentPEFT/DBBench-v0", 3, 20_000


def play_agilerl(model, url):
    """Plays over OpenEnv's protocol, with AgileRL's own client and turn loop."""
    import agilerl

    agilerl.HAS_LLM_DEPENDENCIES = True  # what is left out is for GPUs
    import torch
    from agilerl.llm_envs import RolloutHarness

    tokenizer, own = AutoTokenizer.from_pretrained(model), gymnasium.make(GAME).unwrapped
    names = {"action_field": "text", "observation_field": "text"}
    env = RolloutHarness(f"{url}/{GAME}", tokenizer, 4, max_model_len=MAX_TOKENS, **names)
    returns, shown = [], []
    for seed in range(NUM_TASKS):
        prompt, info = env.reset(seed=seed)
        assert own.reset(seed=seed)[0] in tokenizer.decode(prompt["input_ids"][0])
        for action in own.oracle_actions(own.task):
            assert not env.done
            said = torch.tensor([[*tokenizer.encode(action), tokenizer.eos_token_id]])
            _, _, _, _, info = env.step(torch.cat([env.current_prompt["input_ids"], said], 1))
            shown.append(info)
        assert env.done
        shown.append(tokenizer.decode(env.full_ids[0]))
        returns.append(sum(env.turn_rewards))
    env.close()
    return returns, shown


def actions_as_a_runner_resets(num):
    """Returns the oracle's actions by prompt: of a reset to seed 0, and of `num` that name none."""
    own, actions = gymnasium.make(GAME).unwrapped, {}
    for seed in (0, *[None] * num):
        prompt, _ = own.reset(seed=seed)
        actions[prompt] = own.oracle_actions(own.task)
    return actions


def sample_by_rllib(model, actions, num, *, max_tokens, max_new_tokens):
    """Returns `num` episodes of RLlib's runner, and what its module was shown.

    The module says the tokens of `actions`, which are those of `actions_as_a_runner_resets`.
    """
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.columns import Columns
    from ray.rllib.core.rl_module import RLModuleSpec
    from ray.rllib.core.rl_module.torch import TorchRLModule
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    from agentpeft.apps.drivers.token_env import TokenEnv

    tokenizer = AutoTokenizer.from_pretrained(model)
    chat, begun = ChatFormat(tokenizer), tokenizer.convert_tokens_to_ids("<|assistant|>")
    turns = {
        tuple(chat.begin(prompt).tolist()): [chat.encode_action(action) for action in said]
        for prompt, said in actions.items()
    }

    class Oracle(TorchRLModule):
        def setup(self):
            self.shown, self.to_say = [], []

        def _forward(self, batch, **_):
            if not self.to_say:
                (ids,) = [row[row >= 0].tolist() for row in batch[Columns.OBS]]
                self.shown.append(tokenizer.decode(ids))
                prompt = tuple(ids[: ids.index(begun) + 1])
                num_said = ids[len(prompt) :].count(begun)
                # A runner asks once more when an episode is over, and looks at no answer.
                self.to_say = [*turns[prompt], np.zeros(1, int)][num_said].tolist()
            logits = np.full((1, len(tokenizer)), -1e9, np.float32)
            logits[0, self.to_say.pop(0)] = 0
            return {Columns.ACTION_DIST_INPUTS: torch.from_numpy(logits)}

    limits = {"max_tokens": max_tokens, "max_new_tokens": max_new_tokens}
    config = (
        PPOConfig()
        .environment(TokenEnv, env_config={"game": GAME, "model": model, **limits})
        .env_runners(num_env_runners=0)
        .debugging(seed=0)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Oracle))
    )
    runner = SingleAgentEnvRunner(config=config, worker_index=0)
    episodes = runner.sample(num_episodes=num, random_actions=False)
    return episodes, runner.module.shown


def play_rllib(model):
    """Plays with RLlib's runner; the module says the tokens that come next."""
    actions = actions_as_a_runner_resets(NUM_TASKS)
    limits = {"max_tokens": MAX_TOKENS, "max_new_tokens": 1000}
    episodes, shown = sample_by_rllib(model, actions, NUM_TASKS, **limits)
    assert all(episode.is_terminated for episode in episodes)
    assert not any(info for episode in episodes for info in episode.get_infos())
    return [episode.get_return() for episode in episodes], shown


def play_swift(model):
    """Plays with ms-swift's scheduler of turns; the engine says the tokens that come next."""
    import asyncio

    from peers_at_play import actions_by_prompt
    from swift.infer_engine import protocol
    from swift.rollout.multi_turn import GYMScheduler

    import agentpeft.apps.drivers.swift_env  # noqa: F401 (registers itself)

    actions, shown = actions_by_prompt(), []

    class Oracle:
        tokenizer, template = AutoTokenizer.from_pretrained(model), None

        async def infer_async(self, request, config, **_):
            texts = [str(message["content"]) for message in request.messages]
            shown.extend(texts)
            num_said = sum(message["role"] == "assistant" for message in request.messages)
            action = actions[texts[0]][num_said]
            choice = protocol.ChatCompletionResponseChoice(
                index=0,
                message=protocol.ChatMessage(role="assistant", content=action),
                finish_reason="stop",
                logprobs=None,
                token_ids=self.tokenizer.encode(action),
            )
            usage = protocol.UsageInfo(1, 1, 2)
            return protocol.ChatCompletionResponse(model="oracle", choices=[choice], usage=usage)

    async def play():
        returns = []
        scheduler = GYMScheduler(Oracle(), max_turns=8, gym_env="agentpeft")
        for position in range(NUM_TASKS):
            row = {"env_config": {"name": "agentpeft", "game": GAME, "position": position}}
            messages = [{"role": "user", "content": ""}]
            request = protocol.RolloutInferRequest(messages, data_dict=row, uuid=str(position))
            played = await scheduler.run(request, protocol.RequestConfig())
            assert played.rollout_infos["gym_done"]
            returns.append(played.rollout_infos["total_reward"])
        return returns

    return asyncio.run(play()), shown


if __name__ == "__main__":
    returns, shown = globals()[f"play_{sys.argv[1]}"](*sys.argv[2:])
    sys.stdout.write(json.dumps({"returns": returns, "shown": json.dumps(shown)}) + "\n")
