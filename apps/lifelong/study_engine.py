"""One vLLM for a whole study: its base, with LoRA slots for all that is trained and evaluated.

Starting vLLM takes a minute on a GPU, and a study has a run for every stage of every method. So the
runs play and learn in the study's process, and find its engine there by `SHARED`
(`env_runners.shared_engines`); what is evaluated is served from its slots too.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentpeft.apps.lifelong.methods import NUM_EXAMPLES
from agentpeft.envs import SettingsError
from agentpeft.launch.evaluating.adapter_bank import read_bank
from agentpeft.launch.evaluating.players import (
    Contestant,
    Methods,
    ReadyPlayer,
    make_ready,
    playing,
    with_agent,
)
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.player import Player
from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.engines.vllm.settings import read_vllm_settings
from agentpeft.policies.engines.vllm.start import check_vllm, read_stop_tokens, start_process
from agentpeft.policies.messages import AdapterVersion
from agentpeft.policies.models.base_files import find_served_base
from agentpeft.policies.models.lora.read_adapter import is_base, read_adapter, read_config
from agentpeft.policies.rollout.chat import ChatFormat, open_chat
from agentpeft.policies.settings.config import Settings

if TYPE_CHECKING:  # it imports vllm
    from agentpeft.policies.engines.vllm.process import VllmProcess

SHARED = f"{__name__}:study"
_opened: list["StudyEngine"] = []
"""The engine of the study that this process runs, if it has one."""


class StudyEngine:
    """vLLM over a study's base, started when it is first needed; a context manager that ends it."""

    def __init__(self, settings: Settings, base: str, num_evaluated: int) -> None:
        """`settings` say which share of a GPU and how much memory it has.

        There are slots for the adapter that learns and for `num_evaluated` that are evaluated at
        once, those of a bank.
        """
        self._settings, self._base = settings.with_model(name=base, adapter=None), base
        self._num_slots = 1 + num_evaluated
        self._process: VllmProcess | None = None

    def __enter__(self) -> "StudyEngine":
        _opened.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _opened.remove(self)
        if self._process is not None:
            self._process.close()

    def open_engine(self, settings: Settings, num_adapters: int = 1) -> tuple[ChatFormat, Engine]:
        """Returns how the base reads and writes, and an engine with slots of its own.

        With 0 adapters it serves the base alone. Raises: SettingsError.
        """
        check_vllm()
        limits = self._settings.env_runners
        folder, tokenizer = find_served_base(self._settings, limits.num_gpus_per_env_runner)
        if self._process is None:
            started = read_vllm_settings(self._settings, folder)
            started = replace(started, serving="native", num_adapters=self._num_slots)
            self._process = start_process(folder, started)
        from agentpeft.policies.engines.vllm.engine import VllmEngine

        most = self._process.settings.max_context_tokens
        context = settings.env_runners.limit_context(most)
        chat = open_chat(tokenizer, settings, read_stop_tokens(folder), context)
        limited = replace(
            self._process.settings,
            max_context_tokens=context,
            num_adapters=max(num_adapters, 1),
            needs_adapter=num_adapters > 0,
        )
        return chat, VllmEngine(self._process, chat.stop_token_ids, limited, owns_process=False)

    @contextmanager
    def playing(
        self, settings: Settings, contestant: Contestant, methods: Methods
    ) -> Iterator[ReadyPlayer]:
        """Yields a contestant's player: the base, a bank, and an adapter that fits the slots.

        Any other is played by the embedded engine. Raises: as `players.playing`.
        """
        settings = with_agent(settings, contestant, methods)
        bank = read_bank(Path(contestant.bank)) if contestant.bank else None
        adapters = [Path(contestant.target)] if contestant.kind == "adapter" else []
        adapters = list(bank.adapters.values()) if bank else adapters
        if not all(map(self._fits, adapters)):
            with playing(settings, contestant, methods) as ready:
                yield ready
            return
        chat, engine = self.open_engine(settings, len(adapters))
        try:
            for number, adapter in enumerate(adapters):
                engine.load_adapter(_read_version(number, contestant.file_name, adapter))
            yield make_ready(settings, Player(chat, engine), methods, bank, {})
        finally:
            engine.close()

    def _fits(self, adapter: Path) -> bool:
        config = read_config(adapter)
        has_slot = config.r <= self._settings.lora.rank
        return has_slot and is_base(config, adapter, self._base, None)


def _read_version(number: int, name: str, adapter: Path) -> AdapterVersion:
    config = read_config(adapter)
    scaling = config.lora_alpha / (math.sqrt if config.use_rslora else float)(config.r)
    return make_version(number, name, read_adapter(adapter), scaling)


def start_shared(settings: Settings, name: str) -> tuple[ChatFormat, Engine]:
    """Returns how the study's base reads and writes, and an engine for one of its runs.

    Raises: SettingsError where this process runs no study.
    """
    if not _opened:
        raise SettingsError(
            f"env_runners.shared_engines: {name!r} is the engine of a study (lifelong, "
            "prove), which no run has outside it"
        )
    return _opened[-1].open_engine(settings)


def with_room(settings: Settings) -> Settings:
    """Returns settings whose conversations have room for the examples of `in_context` too."""
    limits = settings.env_runners
    if limits.max_context_tokens is None:
        return settings
    most = (NUM_EXAMPLES + 1) * limits.max_context_tokens
    wider = limits.model_copy(update={"max_context_tokens": most})
    return settings.model_copy(update={"env_runners": wider})
