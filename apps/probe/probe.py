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
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from agentpeft.apps.probe.completions import Completions, find_models
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.launch.run.run_folder import find_adapter
from agentpeft.policies.engines.endpoint_address import check_url

STATUS = {"served": 0, "not served": 3, "cannot tell": 4}
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
    from agentpeft.apps.probe.probing import choose_model, probe_adapter, probe_canary
    from agentpeft.apps.probe.references import References

    start_s = time.monotonic()
    check_url("the endpoint", url)
    url = url.rstrip("/")
    folder = find_adapter(adapter)
    models = find_models(url, timeout)
    if canary is None:
        endpoint = Completions(url, choose_model(models, model), timeout)
        judgement = probe_adapter(endpoint, References(folder, base), models)
    else:
        judgement = probe_canary(url, folder, base, canary, timeout)
    seconds = round(time.monotonic() - start_s, 1)
    result = {"verdict": judgement.answer, "reason": judgement.reason, **judgement.figures}
    said = f"{judgement.answer}: {judgement.reason}."
    finish(result | {"adapter": str(folder), "seconds": seconds}, said, as_json=as_json)
    return STATUS[judgement.answer]


if __name__ == "__main__":
    sys.exit(main())
