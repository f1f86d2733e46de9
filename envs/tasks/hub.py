"""Rows of data sets on the Hugging Face hub, through the `datasets` package."""

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping

from agentpeft.envs.core.errors import DataError, SettingsError, is_installed
from agentpeft.envs.tasks.records import Record

HUB_PREFIX = "hub:"
"""Begins the name of a data set where a file's path may stand too."""
_CHECK_TIMEOUT_S = 5.0
_OFFLINE = "HF_HUB_OFFLINE"


def load_hub_rows(dataset: str, config: str | None, split: str) -> Iterator[Record]:
    """Returns a split's rows, from the local cache where there is no network.

    `dataset` is an id, or a folder of files that the package reads. `config` None is its only one.
    A hub that does not answer within 5 s counts as no network and sets `HF_HUB_OFFLINE` (the
    package reads it when it is first imported; its own retries take half a minute).
    Raises: SettingsError without the package, DataError where the rows cannot be had.
    """
    if not is_installed("datasets"):
        raise SettingsError(f"{dataset} needs datasets: pip install 'agentpeft[hub]'")
    if not is_hub_reachable():
        os.environ[_OFFLINE] = "1"
    from datasets import load_dataset

    try:
        rows = load_dataset(dataset, config, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        if os.environ.get(_OFFLINE):
            reason = f"no network (or {_OFFLINE} is set), and no copy in the cache"
        raise DataError(f"{dataset} split {split!r} cannot be loaded: {reason}") from None
    return (
        Record(f"{dataset} {split} row {index}", str(index), dict(row))
        for index, row in enumerate(rows)
    )


def is_hub_reachable() -> bool:
    """Returns whether the hub answers within 5 s, and may be asked (`HF_HUB_OFFLINE`)."""
    return ask_hub("") is not None


def ask_hub(path: str, headers: Mapping[str, str] | None = None) -> int | None:
    """Returns the status of the hub's answer; None where it does not answer, or may not be asked.

    `path` begins with a slash; "" is the hub's own page.
    """
    if os.environ.get(_OFFLINE):
        return None
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    try:
        request = urllib.request.Request(endpoint + path, headers=dict(headers or {}))  # noqa: S310 (the user's)
        with urllib.request.urlopen(request, timeout=_CHECK_TIMEOUT_S) as answer:  # noqa: S310
            status: int = answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return status
