"""Who can be evaluated, and what each of them needs to play."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias, cast

import numpy as np
from transformers import PreTrainedModel

from agentpeft.envs import SettingsError
from agentpeft.envs.tools.tool_table import find_tools
from agentpeft.launch.evaluating.adapter_bank import AdapterBank, read_bank
from agentpeft.policies.engines.endpoint_address import read_key
from agentpeft.policies.engines.endpoint_chat import EndpointToolChat, TextChat
from agentpeft.policies.engines.player import Player
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.engines.voting import ReplayChat, VotingEngine
from agentpeft.policies.engines.wrapping import RoutingEngine
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.rollout.chat import make_chat
from agentpeft.policies.rollout.tool_chat import need_named_tools
from agentpeft.policies.settings.config import Settings

Kind: TypeAlias = Literal[
    "base", "adapter", "merged", "whole", "bank", "oracle", "random", "endpoint"
]
_CHARACTERS = [chr(code) for code in range(32, 127)]


@dataclass(frozen=True)
class Contestant:
    """A policy under a name: `target` is a model, an adapter's folder, or an endpoint's URL.

    "whole" is what a run on all weights has saved. The name of what an endpoint serves is its
    model's there. Of a `bank`, a folder, each episode is played by the adapter that the prompt
    chooses; at an endpoint its adapters are models by their names.
    """

    name: str
    kind: Kind
    target: str = ""
    bank: str = ""

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
    action counts. `endpoint_options` are further fields of an endpoint's requests;
    `endpoint_tools`: its models act by calls of the environment's tools.
    """

    num_replayed: int = 0
    num_voters: int = 1
    endpoint_options: Mapping[str, object] = field(default_factory=dict)
    endpoint_tools: bool = False

    def __post_init__(self) -> None:
        """Raises: SettingsError."""
        for option, value, least in (
            ("--replay", self.num_replayed, 0),
            ("--votes", self.num_voters, 1),
        ):
            if value < least:
                raise SettingsError(f"{option} must be >= {least}, got {value}")
        if not isinstance(self.endpoint_options, Mapping):
            raise SettingsError(
                'expected --endpoint-options as a JSON object such as {"top_p": 0.9}, '
                f"got {self.endpoint_options!r:.60}"
            )


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
def playing(settings: Settings, contestant: Contestant, methods: Methods) -> Iterator[ReadyPlayer]:
    """Yields a contestant's player; models are loaded, or merged for as long as the block runs.

    Raises: SettingsError, CheckpointError.
    """
    settings = with_agent(settings, contestant, methods)
    bank = read_bank(Path(contestant.bank)) if contestant.bank else None
    with TemporaryDirectory(prefix="agentpeft-merged-") as folder:
        num_tokens: Mapping[str, int] = {}
        if contestant.kind in ("oracle", "random"):
            player, settings = _scripted(settings, contestant.kind)
        elif contestant.kind == "endpoint":
            player, settings, num_tokens = _endpoint(settings, contestant, methods, bank)
        elif bank is not None:
            player = _open_bank(settings, bank)
        else:
            player = _local(settings, contestant, Path(folder) / "merged")
        num_voters = 1 if contestant.kind in ("oracle", "random") else methods.num_voters
        votes = replace(methods, num_voters=num_voters)
        yield make_ready(settings, player, votes, bank, num_tokens)


def make_ready(
    settings: Settings,
    player: Player,
    methods: Methods,
    bank: AdapterBank | None,
    num_tokens: Mapping[str, int],
) -> ReadyPlayer:
    """Returns a player that plays by `methods`, and whose prompts choose from a bank's adapters."""
    groups = methods.num_voters if methods.num_replayed else 1
    replay, engine = ReplayChat(player.chat, methods.num_replayed, groups), player.engine
    if bank is not None:
        choose = bank.choose
        engine = RoutingEngine(engine, lambda ids: choose(replay.prompts[ids.tobytes()]))
    if methods.num_voters > 1:
        temperature = settings.env_runners.temperature
        engine = VotingEngine(engine, replay, methods.num_voters, temperature)
    chat = player.chat if settings.env_runners.agent else replay
    return ReadyPlayer(Player(chat, engine, player.oracle), settings, replay, num_tokens)


def with_agent(settings: Settings, contestant: Contestant, methods: Methods) -> Settings:
    """Returns the settings as they are for a model that `env_runners.agent` asks.

    The oracle and the random agent act by themselves. Raises: SettingsError where the agent's
    prompts would not be what a method, or an endpoint, needs.
    """
    if not settings.env_runners.agent:
        return settings
    if contestant.kind in ("oracle", "random"):
        limits = settings.env_runners.model_copy(update={"agent": {}})
        return settings.model_copy(update={"env_runners": limits})
    if contestant.kind == "endpoint" or contestant.bank or methods != Methods():
        raise SettingsError(
            "env_runners.agent plays with models of this machine, without --replay, --votes, "
            "endpoints and adapter banks: env_runners.agent={} leaves it out"
        )
    return settings


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
    settings: Settings, contestant: Contestant, methods: Methods, bank: AdapterBank | None
) -> tuple[Player, Settings, Mapping[str, int]]:
    from agentpeft.policies.engines.openai import Endpoint, OpenAIEngine

    model, chat, key = settings.model, TextChat(settings.model), read_key()
    if methods.endpoint_tools or model.tool_calls:
        tools = find_tools(settings.environment.id)
        need_named_tools(settings.environment.id, tools, settings.held_out_kwargs)
        chat = EndpointToolChat(model, tools)
        kwargs = {**settings.evaluation.env_kwargs, **tools.env_kwargs}
        evaluation = settings.evaluation.model_copy(update={"env_kwargs": kwargs})
        settings = settings.model_copy(update={"evaluation": evaluation})
    template = {"chat_template_kwargs": model.chat_template_kwargs}
    options = (template if model.chat_template_kwargs else {}) | dict(methods.endpoint_options)
    adapters = tuple(bank.adapters) if bank else ()
    url, name = contestant.target, contestant.name
    where = Endpoint(url, name, key or "none", options=options, adapters=adapters)
    engine = OpenAIEngine(where, chat)
    return Player(chat, engine), settings, engine.num_tokens


def open_policy(settings: Settings, contestant: Contestant) -> PolicyBase:
    """Returns the model that a contestant's target names, with its adapter unmerged in it.

    Raises: SettingsError, CheckpointError.
    """
    from agentpeft.policies.models.load import load_served_base
    from agentpeft.policies.models.lora.open_adapters import open_adapter

    name, num_gpus = contestant.target, settings.env_runners.num_gpus_per_env_runner
    base = load_served_base(settings.with_model(name=name, adapter=None), num_gpus)
    if contestant.kind == "adapter":
        open_adapter(base, name)
    return base


def _open_bank(settings: Settings, bank: AdapterBank) -> Player:
    """Returns a model of this process with all adapters of a bank, any of which a request names."""
    from agentpeft.policies.models.load import load_served_base
    from agentpeft.policies.models.lora.open_adapters import open_adapters

    folders = list(bank.adapters.values())
    whole = settings.with_model(name=str(folders[0]), adapter=None)
    base = load_served_base(whole, settings.env_runners.num_gpus_per_env_runner)
    model, names = open_adapters(base, folders)
    return _serve(settings, base, cast(PreTrainedModel, model), names)


def _local(settings: Settings, contestant: Contestant, merged: Path) -> Player:
    """Returns a model of this process: alone, with an unmerged adapter, or merged and reloaded."""
    from agentpeft.launch.evaluating.merging import merge

    name = contestant.target
    if contestant.kind == "merged":
        dtype = "auto" if settings.model.is_in_4_bits else settings.model.dtype
        whole = settings.with_model(name=name, adapter=None, dtype=dtype)
        merge(whole, Path(name), merged)
        contestant = replace(contestant, target=str(merged))
    base = open_policy(settings, contestant)
    return _serve(settings, base, base.model)


def _serve(
    settings: Settings, base: PolicyBase, model: PreTrainedModel, adapters: tuple[str, ...] = ()
) -> Player:
    from agentpeft.policies.engines.transformers.engine import EngineSettings, TransformersEngine

    limits, chat = settings.env_runners, make_chat(base, settings)
    engine_settings = EngineSettings(
        max_concurrent=limits.max_concurrent_episodes,
        max_context_tokens=limits.max_context_tokens,
        needs_adapter=False,
        deterministic=settings.deterministic,
        adapters=adapters,
    )
    return Player(chat, TransformersEngine(model, chat.stop_token_ids, engine_settings))
