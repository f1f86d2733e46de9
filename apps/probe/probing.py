"""Asks an endpoint what our own computation says too, and judges the answers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from agentpeft.apps.probe import canary as canaries
from agentpeft.apps.probe.completions import CannotTellError, Completions, find_models
from agentpeft.apps.probe.references import References
from agentpeft.apps.probe.verdict import (
    Judgement,
    Served,
    distance,
    find_unseen,
    judge,
    name_factors,
)
from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.probe import choose_limit
from agentpeft.policies.messages import Floats

_NUM_SAMPLED = 8


def choose_model(models: Mapping[str, str | None], wanted: str | None, folder: Path) -> str:
    """Returns the endpoint's name of the adapter in a folder.

    Raises: SettingsError if that is not clear.
    """
    listed = ", ".join(models) or "none"
    if wanted is not None:
        if wanted not in models:
            raise SettingsError(f"--model {wanted!r} is not served: {listed:.400}")
        return wanted
    adapters = [name for name, parent in models.items() if parent]
    for names in (
        [name for name in models if name in (folder.name, str(folder))],
        adapters,
        models,
    ):
        if len(names) == 1:
            return next(iter(names))
    raise SettingsError(f"say which model is the adapter, by --model: {listed:.400}")


def probe_canary(
    url: str, adapter: Path, base: str | None, folder: Path, timeout_s: float
) -> Judgement:
    """Has the server load a canary whose every module can be told, and probes it.

    It is written into `folder`. Raises: as `probe_adapter`, `write_canary` and `served_canary`.
    """
    if folder.exists() and any(folder.iterdir()):
        raise SettingsError(f"--canary {folder}: expected a new or empty folder")
    endpoint = Completions(url, canaries.NAME, timeout_s)
    canaries.write_canary(adapter, folder)
    references = References(folder, base)
    for factor in canaries.FACTORS:
        limit = choose_limit(references.say(factor), in_bfloat16=True)
        if not find_unseen(references.say, references.modules, limit, factor):
            break
    canaries.write_canary(adapter, folder, factor)
    references.enlarge(factor)
    with canaries.served_canary(url, folder, timeout_s):
        return probe_adapter(endpoint, references, find_models(url, timeout_s))


def probe_adapter(
    endpoint: Completions, references: References, models: Mapping[str, str | None]
) -> Judgement:
    """Returns whether an endpoint serves an adapter; `models` are the endpoint's, by `find_models`.

    Raises: EngineError where it does not answer.
    """
    own_base, parent = references.say_base(), models.get(endpoint.model)
    try:
        given, noise = _score(endpoint, references), None
        if parent is not None and parent in models:
            noise = distance(_score(replace(endpoint, model=parent), references), own_base)
    except CannotTellError as error:
        return Judgement(Served.UNKNOWN, str(error))
    factors = name_factors(references.scaling, references.rank)
    judgement = judge(given, own_base, references.say, references.modules, factors, noise)
    judgement.figures["kept_in_bfloat16"] = references.kept_in_bfloat16()
    if judgement.answer is not Served.YES:
        return judgement
    sampling = _measure_sampling(endpoint, references)
    judgement.figures["sampling_difference"] = sampling
    limit = float(str(judgement.figures["limit"]))
    if sampling is not None and sampling > limit:
        reason = f"it samples from other weights than it scores with: {sampling:.2g} nats a token"
        return Judgement(Served.NO, f"{reason} (limit {limit:.2g})", judgement.figures)
    return judgement


def _measure_sampling(endpoint: Completions, references: References) -> float | None:
    """Returns how far what is sampled is from what is scored: the mean, in nats; None: unknown."""
    differences = []
    try:
        for seed, ids in enumerate(references.sequences):
            tokens, logprobs = endpoint.sample(ids, _NUM_SAMPLED, seed)
            again = endpoint.score(np.concatenate([ids, tokens]))[len(ids) - 1 :]
            differences.append(np.abs(again - logprobs))
    except CannotTellError:
        return None
    values = np.concatenate(differences)
    return float(values.mean()) if len(values) else None


def _score(endpoint: Completions, references: References) -> Floats:
    return np.concatenate([endpoint.score(ids) for ids in references.sequences])
