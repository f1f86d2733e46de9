"""Says whether an OpenAI-compatible endpoint serves a LoRA adapter, and if not, what it serves.

```sh
agentpeft probe http://localhost:8000/v1 --adapter outputs/quickstart/20260101-120000
agentpeft probe http://localhost:8000/v1 --adapter my_adapter --model my-lora --base Qwen/Qwen3-4B
agentpeft probe http://localhost:8000/v1 --adapter my_adapter --canary /tmp/canary
```

It compares the endpoint's log-probabilities of fixed tokens with those that it computes from the
adapter's files: of the adapter, of its base, of the adapter at other scales and without some of its
modules. It needs the base's weights here, and an endpoint that gives a prompt's log-probabilities
(`/completions` with `echo` and `logprobs`, as vLLM's has). The key is taken from OPENAI_API_KEY.

Exit status: 0 served; 3 not served; 4 cannot tell; 1 a failure; 2 wrong input; 130 interrupted.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Argument, Option

from agentpeft.apps.probe import canary as canaries
from agentpeft.apps.probe.completions import CannotTellError, Completions, find_models
from agentpeft.apps.probe.references import References
from agentpeft.apps.probe.verdict import (
    Answer,
    Verdict,
    distance,
    find_unseen,
    judge,
    name_factors,
)
from agentpeft.envs import SettingsError
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.launch.run.run_folder import find_adapter
from agentpeft.policies.delivery.probe import choose_limit
from agentpeft.policies.messages import Floats

STATUS = {Answer.SERVED: 0, Answer.NOT_SERVED: 3, Answer.CANNOT_TELL: 4}
_NUM_SAMPLED = 8
main = CommandLine()


@main.add(help=__doc__)
def probe(  # noqa: PLR0913 (options, by keyword only)
    url: Annotated[str, Argument(metavar="URL", help="The endpoint, such as http://host:8000/v1.")],
    *,
    adapter: Annotated[Path, Option(metavar="DIR", help="An adapter's folder, or a run's.")],
    model: Annotated[
        str | None, Option(metavar="NAME", help="The adapter's name there (see URL/models).")
    ] = None,
    base: Annotated[
        str | None, Option(metavar="MODEL", help="The base: a folder or a hub id, if not its own.")
    ] = None,
    canary: Annotated[
        Path | None,
        Option(metavar="DIR", help="Write a canary here, have the server load it, and probe that."),
    ] = None,
    timeout: Annotated[float, Option(metavar="SECONDS", min=0.1, help="For an answer.")] = 60.0,
    as_json: AsJson = False,
) -> int:
    """Prints the verdict and returns its status."""
    start_s = time.monotonic()
    url = url.rstrip("/")
    folder = find_adapter(adapter)
    models = find_models(url, timeout)
    if canary is None:
        endpoint = Completions(url, _choose(models, model, folder), timeout)
        verdict = _probe(endpoint, References(folder, base), models)
    else:
        verdict = _probe_canary(Completions(url, canaries.NAME, timeout), folder, base, canary)
    seconds = round(time.monotonic() - start_s, 1)
    result = {"verdict": verdict.answer, "reason": verdict.reason, **verdict.figures}
    finish(
        result | {"adapter": str(folder), "seconds": seconds},
        f"{verdict.answer}: {verdict.reason}.",
        as_json=as_json,
    )
    return STATUS[verdict.answer]


def _choose(models: dict[str, str | None], wanted: str | None, folder: Path) -> str:
    """Returns the endpoint's name of the adapter. Raises: SettingsError if that is not clear."""
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


def _probe_canary(endpoint: Completions, adapter: Path, base: str | None, folder: Path) -> Verdict:
    """Has the server load a canary whose every module can be told, and probes it."""
    canaries.write_canary(adapter, folder)
    references = References(folder, base)
    for factor in canaries.FACTORS:
        limit = choose_limit(references.say(factor), in_bfloat16=True)
        if not find_unseen(references.say, references.modules, limit, factor):
            break
    canaries.enlarge_canary(folder, factor)
    references.enlarge(factor)
    canaries.load_canary(endpoint.url, folder, endpoint.timeout_s)
    try:
        models = find_models(endpoint.url, endpoint.timeout_s)
        return _probe(endpoint, references, models)
    finally:
        canaries.unload_canary(endpoint.url, endpoint.timeout_s)


def _probe(endpoint: Completions, references: References, models: dict[str, str | None]) -> Verdict:
    own_base, parent = references.say_base(), models.get(endpoint.model)
    try:
        given, noise = _score(endpoint, references), None
        if parent in models:
            noise = distance(_score(replace(endpoint, model=parent), references), own_base)
    except CannotTellError as error:
        return Verdict(Answer.CANNOT_TELL, str(error))
    factors = name_factors(references.scaling, references.rank)
    verdict = judge(given, own_base, references.say, references.modules, factors, noise)
    verdict.figures["kept_in_bfloat16"] = round(references.kept_in_bfloat16(), 3)
    if verdict.answer is not Answer.SERVED:
        return verdict
    sampling = _measure_sampling(endpoint, references)
    verdict.figures["sampling_difference"] = sampling
    limit = float(str(verdict.figures["limit"]))
    if sampling is not None and sampling > limit:
        reason = f"it samples from other weights than it scores with: {sampling:.2g} nats a token"
        return Verdict(Answer.NOT_SERVED, f"{reason} (limit {limit:.2g})", verdict.figures)
    return verdict


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
    return float(np.concatenate(differences).mean())


def _score(endpoint: Completions, references: References) -> Floats:
    return np.concatenate([endpoint.score(ids) for ids in references.sequences])


if __name__ == "__main__":
    sys.exit(main())
