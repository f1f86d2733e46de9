"""A run of seconds that touches everything: sampling, a step, a delivery, evaluation, a checkpoint.

It tells whether settings, environment and machine go together. What it learns is worth nothing:
where all rewards are equal they are drawn at random, so that there is a gradient to be seen.
"""

from collections.abc import Iterator
from pathlib import Path

from agentpeft.envs import SettingsError
from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.run.run_folder import Start
from agentpeft.policies.learning.options.control import draw_rewards
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.learner_group import LearnerActor

_NUM_ITERATIONS = 2
_MAX_NEW_TOKENS = 8
_WIDTH = 32
_DRAWN = "train/has_drawn_rewards"


class RandomRewardsActor(LearnerActor):
    """A learner that draws rewards at random where none differ."""

    def update(self) -> dict[str, float]:
        """Learns from the groups received and returns the metrics."""
        drawn = draw_rewards(self.received, self.learner.version)
        if drawn is not None:
            self.received = drawn
        return {**super().update(), _DRAWN: float(drawn is not None)}


def describe_gradients(run_dir: Path) -> Iterator[str]:
    """Yields a line for each iteration: its gradient's norm, and whether rewards were drawn."""
    for line in read_metrics(run_dir):
        if (norm := line.get("train/grad_norm")) is not None:
            drawn = ", of rewards drawn at random, as none differed" if line.get(_DRAWN) else ""
            yield f"iteration {line['train/step']:g}: gradient norm {norm:.3g}{drawn}"


def begin_short(start: Start) -> Start:
    """Returns a short run, in a folder apart from those of real runs. Raises: SettingsError."""
    if start.run_dir is not None:
        raise SettingsError("--fast-dev-run begins a run of its own: leave out --resume")
    name = f"{start.settings.experiment}-fast-dev-run"
    return Start(shorten(start.settings).model_copy(update={"experiment": name}))


def shorten(settings: Settings) -> Settings:
    """Returns settings of the same run, two iterations long and as small as it can be.

    Nothing becomes larger. A model of yours stays as it is; the built-in one becomes tiny. An
    entropy bonus makes the learner take its steps also where all episodes are equally wrong.
    Raises: SettingsError.
    """
    training, learners = settings.training, settings.learners
    warm_start, evaluation = settings.warm_start, settings.evaluation
    num_groups = max(min(training.num_groups, 2), learners.num_learners)
    values = settings.model_dump()
    num_steps = min(warm_start.num_steps, 2)
    values["warm_start"] |= {
        "num_steps": num_steps,
        "batch_size": min(warm_start.batch_size, 2),
        "target_success": None,
        "env_kwargs": settings.warm_start.stages[:2] if num_steps == 2 else warm_start.stages[0],
        "promote_at": None,
    }
    values["env_runners"] |= {
        "max_new_tokens": min(settings.env_runners.max_new_tokens, _MAX_NEW_TOKENS)
    }
    values["training"] |= {
        "num_iterations": min(training.num_iterations, _NUM_ITERATIONS),
        "num_groups": num_groups,
        "num_warmup_iterations": 0,
    }
    if settings.is_rl:
        values["training"] |= {
            "group_size": min(training.group_size, 2),
            "entropy_coeff": training.entropy_coeff or 0.01,
            "dynamic_sampling": False,
        }
    values["evaluation"] |= {
        "num_tasks": min(evaluation.num_tasks, 4),
        "samples_per_task": min(evaluation.samples_per_task, 2),
        "interval": min(evaluation.num_tasks, 1),
    }
    values["output"] |= {"checkpoint_interval": 1}
    if settings.is_tiny:
        values["tiny"] |= {"hidden_size": min(settings.tiny.hidden_size, _WIDTH), "num_layers": 1}
    return Settings(**values)
