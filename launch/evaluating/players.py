"""Who can be evaluated, and what each of them needs to play."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import numpy as np

from agentpeft.envs import SettingsError
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.engines.voting import ReplayChat, VotingEngine
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.rollout.chat import TextChat, make_chat
from agentpeft.policies.rollout.env_runner import Player
from agentpeft.policies.settings.config import ModelSettings, Settings

Kind: TypeAlias = Literal["base", "adapter", "merged", "whole", "oracle", "random", "endpoint"]
_CHARACTERS = [chr(code) for code in range(32, 127)]
KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True)
class Contestant:
    """A policy under a name: `target` is a model, an adapter's folder, or an endpoint's URL.

    "whole" is what a run on all weights has saved. The name of what an endpoint serves is its
    model's there.
    """

    name: str
    kind: Kind
    target: str = ""

    @property
    def file_name(self) -> str:
        """A name for its files."""
        return re.sub(r"[^\w.-]+", "_", self.name)

    def is_unmerged(self, other: "Contestant") -> bool:
        """Returns whether it is the adapter that `other` has merged."""
        return (self.kind, other.kind, self.target) == ("adapter", "merged", other.target)


@dataclass(frozen=True)
class Methods:
    """How all contestants play.

    `num_replayed` past successes stand before each prompt; of `num_voters` > 1 the most frequent
    action counts. `endpoint_options` are further fields of an endpoint's requests.
    """

    num_replayed: int = 0
    num_voters: int = 1
    endpoint_options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises: SettingsError."""
        if self.num_replayed < 0 or self.num_voters < 1:
            raise SettingsError(f"--replay must be >= 0 and --votes >= 1, got {self}")


@dataclass(frozen=True)
class ReadyPlayer:
    """A player with what its runner must know: settings, and where successes are handed in.

    `num_tokens`: an endpoint's own counts, by session.
    """

    player: Player
    settings: Settings
    replay: ReplayChat
    num_tokens: Mapping[str, int]

    def recount(self, record: EpisodeRecord) -> EpisodeRecord:
        """Returns the record with the endpoint's number of tokens in place of characters."""
        session = f"eval-{record.group_id:09d}-{record.sample:04d}"
        return replace(record, num_tokens=self.num_tokens.get(session, record.num_tokens))


@contextmanager
def seated(settings: Settings, contestant: Contestant, methods: Methods) -> Iterator[ReadyPlayer]:
    """Yields a contestant's player; models are loaded, or merged for as long as the block runs.

    Raises: SettingsError, CheckpointError.
    """
    with TemporaryDirectory(prefix="agentpeft-merged-") as folder:
        num_tokens: Mapping[str, int] = {}
        if contestant.kind in ("oracle", "random"):
            player, settings = _scripted(settings, contestant.kind)
        elif contestant.kind == "endpoint":
            player, num_tokens = _endpoint(settings.model, contestant, methods)
        else:
            player = _local(settings, contestant, Path(folder) / "merged")
        groups = methods.num_voters if methods.num_replayed else 1
        replay = ReplayChat(player.chat, methods.num_replayed, groups)
        engine = player.engine
        if methods.num_voters > 1 and contestant.kind not in ("oracle", "random"):
            temperature = settings.env_runners.temperature
            engine = VotingEngine(engine, replay, methods.num_voters, temperature)
        yield ReadyPlayer(Player(replay, engine, player.oracle), settings, replay, num_tokens)


def _scripted(settings: Settings, kind: Kind) -> tuple[Player, Settings]:
    changes: dict[str, object] = {"max_new_tokens": sys.maxsize}  # they are characters here
    if kind == "oracle":
        changes["engine"] = "scripted"
    limits = settings.env_runners.model_copy(update=changes)
    settings = settings.model_copy(update={"env_runners": limits})
    chat, oracle = TextChat(settings.model), dict[str, Sequence[str]]()

    def say(session: str, turn: int) -> str:
        rng = np.random.default_rng([settings.seed, turn, *session.encode()])
        return "".join(rng.choice(_CHARACTERS, rng.integers(1, 20)))

    engine = ScriptedEngine(chat, oracle if kind == "oracle" else say)
    return Player(chat, engine, oracle), settings


def _endpoint(
    model: ModelSettings, contestant: Contestant, methods: Methods
) -> tuple[Player, Mapping[str, int]]:
    from agentpeft.policies.engines.openai import Endpoint, OpenAIEngine

    chat, key = TextChat(model), os.environ.get(KEY_VARIABLE) or "none"
    template = {"chat_template_kwargs": model.chat_template_kwargs}
    options = (template if model.chat_template_kwargs else {}) | dict(methods.endpoint_options)
    where = Endpoint(contestant.target, contestant.name, key, options=options)
    engine = OpenAIEngine(where, chat)
    return Player(chat, engine), engine.num_tokens


def _local(settings: Settings, contestant: Contestant, merged: Path) -> Player:
    """Returns a model of this process: alone, with an unmerged adapter, or merged and read anew."""
    from agentpeft.launch.evaluating.merging import merge
    from agentpeft.policies.engines.transformers.engine import EngineSettings, TransformersEngine
    from agentpeft.policies.models.load import load_base
    from agentpeft.policies.models.lora import open_adapter

    limits, name = settings.env_runners, contestant.target
    if contestant.kind == "merged":
        whole = settings.with_model(name=name, adapter=None, load_in_4bit=False)
        report = merge(whole, Path(name), merged)
        if not report["agrees"]:
            raise CheckpointError(f"{name} merged is not the same policy: {report}")
        name = str(merged)
    base = load_base(settings.with_model(name=name, adapter=None), limits.num_gpus_per_env_runner)
    if contestant.kind == "adapter":
        open_adapter(base, name)
    chat = make_chat(base, settings)
    own = EngineSettings(
        max_concurrent=limits.max_concurrent_episodes,
        max_context_tokens=limits.max_context_tokens,
        needs_adapter=False,
        deterministic=settings.deterministic,
    )
    return Player(chat, TransformersEngine(base.model, chat.stop_token_ids, own))
