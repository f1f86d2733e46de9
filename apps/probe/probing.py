"""Asks an endpoint what our own computation says too, and judges the answers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from agentpeft.apps.probe import canary as canaries
from agentpeft.apps.probe.completions import CannotTellError, Completions, find_models
from agentpeft.apps.probe.references import References
from agentpeft.apps.probe.verdict import Judgement, Served, distance, find_unseen, judge
from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.probe import choose_limit
from agentpeft.policies.messages import Floats

_NUM_SAMPLED = 8


def choose_model(models: Mapping[str, str], wanted: str | None) -> str:
    """Returns the endpoint's name of the adapter: what is wanted, or all that it can be.

    Raises: SettingsError if that is not clear.
    """
    names = [wanted] if wanted else [name for name, base in models.items() if base] or [*models]
    if len(names) == 1 and names[0] in models:
        return names[0]
    listed = ", ".join(models) or "none"
    raise SettingsError(f"name the adapter's model, by --model, of {listed:.400}, got {wanted}")


def probe_canary(
    url: str, adapter: Path, base: str | None, folder: Path, timeout_s: float
) -> Judgement:
    """Has the server load a canary whose every module can be told, and probes it.

    It is written into `folder`. Raises: as `probe_adapter`, `write_canary` and `served_canary`.
    """
    if folder.exists() and any(folder.iterdir()):
        raise SettingsError(f"--canary {folder}: expected a new or empty folder")
    canaries.write_canary(adapter, folder, 1.0)
    references = References(folder, base)
    for factor in canaries.FACTORS:
        references.enlarge(factor)
        limit = choose_limit(references.say(), in_bfloat16=True)
        if not find_unseen(references.say, references.modules, limit):
            break
    canaries.write_canary(adapter, folder, factor)
    with canaries.served_canary(url, folder, timeout_s):
        endpoint = Completions(url, canaries.NAME, timeout_s)
        return probe_adapter(endpoint, references, find_models(url, timeout_s))


def probe_adapter(
    endpoint: Completions, references: References, models: Mapping[str, str]
) -> Judgement:
    """Returns whether an endpoint serves an adapter; `models` are the endpoint's, by `find_models`.

    Raises: EngineError where it does not answer.
    """
    own_base, parent = references.say_base(), models.get(endpoint.model, "")
    try:
        given, noise = _score(endpoint, references), None
        if parent in models:
            noise = distance(_score(replace(endpoint, model=parent), references), own_base)
    except CannotTellError as error:
        return Judgement(Served.UNKNOWN, str(error))
    root = math.sqrt(references.rank)
    # Half and twice, alpha ignored, and rank-stabilized where it is not, or the other way round
    factors = {0.5, 2.0, 1 / (references.scaling or 1.0), root, 1 / root} - {1.0}
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
