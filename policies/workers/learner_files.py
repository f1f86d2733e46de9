"""A learner's part of a checkpoint, as files: the adapter in PEFT's format, and all else it needs.

`places` are where files of the driver's machine are on the learner's, by the driver's paths.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory, gettempdir

import torch

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.models.lora.attach_lora import Policy

ADAPTER, STATE = "adapter", "learner.pt"
"""The folder of the adapter, and the file of the rest of the learner's state."""
_ZIP = b"PK\3\4"


def write_all(learner: Learner, places: Mapping[str, str]) -> dict[str, bytes]:
    """Returns the files, by relative name."""
    buffer = io.BytesIO()
    torch.save(learner.state_dict(), buffer)
    written = write_adapter(learner.policy, places)
    adapter = {f"{ADAPTER}/{name}": file for name, file in written.items()}
    return {**adapter, STATE: buffer.getvalue()}


def write_adapter(policy: Policy, places: Mapping[str, str]) -> dict[str, bytes]:
    """Returns the adapter's files, or the whole model's if all weights are trained."""
    with TemporaryDirectory() as folder:
        try:
            policy.save(folder)
        except CheckpointError as error:  # what has no room is the folder of temporary files
            raise CheckpointError(str(error).replace(folder, gettempdir())) from error
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return _rename_base(files, {place: path for path, place in places.items()})


def restore(learner: Learner, files: Mapping[str, bytes], places: Mapping[str, str]) -> None:
    """Goes on from what `write_all` returned. Raises: CheckpointError, SettingsError."""
    try:
        if not files[STATE].startswith(_ZIP):  # torch would take it for a pickle
            raise UnpicklingError("it is no file of torch")
        state = torch.load(io.BytesIO(files[STATE]), weights_only=True)
    except (KeyError, RuntimeError, EOFError, UnpicklingError) as error:
        raise CheckpointError(f"the learner's state cannot be read: {error}") from None
    with TemporaryDirectory() as folder:
        for name, content in _rename_base(files, places).items():
            if name.startswith(f"{ADAPTER}/"):
                path = Path(folder) / Path(name).relative_to(ADAPTER)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        try:
            learner.policy.load(folder)
        except (CheckpointError, SettingsError) as error:  # by then this folder is gone
            text = str(error).replace(f"{folder}/", "").replace(folder, "of the checkpoint")
            raise type(error)(text) from error
    learner.load_state_dict(state)


def _rename_base(files: Mapping[str, bytes], names: Mapping[str, str]) -> dict[str, bytes]:
    """Returns the files as `rename_base` does; without names there is nothing to rename."""
    if not names:
        return dict(files)
    from agentpeft.policies.workers.brought_files import rename_base

    return rename_base(files, names)
