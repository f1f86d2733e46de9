"""Starting or joining Ray, and Ray's errors in one line.

Ray is never stopped here, except what was started here.
"""

import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

import ray
from ray._private import parameter
from ray.exceptions import RayError, RayTaskError

import agentpeft
from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import user_folders
from agentpeft.launch.run.ray_folder import OVER, is_in_ray_copy, ray_folder, tell_sweeper
from agentpeft.launch.run.standard_streams import show_progress
from agentpeft.policies.errors import RayHangsError, TrainingError
from agentpeft.policies.workers.time_limits import RAY_START_S, await_interrupted, within

__all__ = ["RayError", "ray_session", "say_cause"]

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]
_SHUTDOWN_S = 10.0
_ASIDE = {
    "ray._private.worker": "SIGTERM handler is not set",
    "ray._private.authentication.authentication_token_setup": "Token authentication is enabled",
}
"""What no reader needs, by the name of the logger that says it."""


@contextmanager
def ray_session(address: str | None, run_dir: Path) -> Iterator[None]:
    """Joins the cluster at `address` (None: RAY_ADDRESS), or starts one of this machine's own.

    Workers find the package as this process does: installed, or in the folders of the working
    directory. Of a cluster of the run's own nothing is left, but where the run fails its logs in
    `run_dir`. Raises: SettingsError where no cluster answers, RayHangsError, TrainingError where
    Ray does not start.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    for name in _ASIDE:
        logging.getLogger(name).addFilter(_is_for_readers)
    show_progress(f"{'starting' if address == 'local' else 'joining'} Ray (10 to 60 s)")
    with ExitStack() as stack:
        folder = None
        if address == "local":  # whose GCS does not come back, once it is gone
            # Longer than closing and shutting down may take: Ray then ends this process itself
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "40")
            folder = stack.enter_context(ray_folder(run_dir / "logs" / "ray"))
        stack.callback(_shut_down)
        try:
            within(RAY_START_S, "starting Ray", partial(_start, address, folder), stays=True)
        except TrainingError:
            raise
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise SettingsError(f"cannot use Ray at {address!r}: {reason}") from error
        logger.info("%s Ray (%s)", "started" if address == "local" else "joined", address)
        yield
        tell_sweeper(OVER)


def _start(address: str, folder: Path | None) -> None:
    """`folder` is for Ray's own files; None where a cluster is joined."""
    try:
        with _hang_up_blocked(), _free_agent_port():
            ray.init(
                address=address,
                runtime_env=_runtime_env(address),
                include_dashboard=False if address == "local" else None,
                logging_level=logging.WARNING,
                _temp_dir=None if folder is None else str(folder),
            )
    except Exception as error:  # Ray has no other for a node that is too slow
        if address == "local" and "timed out" in str(error).lower():
            raise TrainingError(f"Ray did not start: {say_cause(error)}") from error
        raise


@contextmanager
def _free_agent_port() -> Iterator[None]:
    """Within it, the agent of a Ray that this process starts listens on any free port.

    Its own is 52365, which a cluster on this machine needs for `ray job submit`, and `ray start`
    has an option for it that `ray.init` lacks.
    """
    parameters = parameter.RayParams
    vars(parameter)["RayParams"] = partial(parameters, dashboard_agent_listen_port=0)
    try:
        yield
    finally:
        vars(parameter)["RayParams"] = parameters


@contextmanager
def _hang_up_blocked() -> Iterator[None]:
    """Within it, this thread starts processes that a terminal's hang-up does not end.

    It reaches all processes of the foreground, and the run needs Ray's to save what it has learnt.
    Here it is delivered after the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _shut_down() -> None:
    """Ends Ray's part of this process, and the Ray that it started; a Ray that hangs is left."""
    await_interrupted(_SHUTDOWN_S)
    try:
        within(_SHUTDOWN_S, "shutting down", ray.shutdown)
    except RayHangsError:
        atexit.unregister(ray.shutdown)
        what = "what was started here ends with this process"
        logger.warning("Ray does not shut down within %g s; %s", _SHUTDOWN_S, what)
    handler = signal.getsignal(signal.SIGTERM)  # Ray has reset it in C; Python still knows it
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _is_for_readers(record: logging.LogRecord) -> bool:
    """Returns False for what Ray says of our signals' handlers, and of its tokens being in use."""
    return not any(text in record.getMessage() for text in _ASIDE.values())


def _runtime_env(address: str) -> dict[str, object]:
    """Returns what lets workers import the rooms; nothing where the package is installed.

    Other machines of a cluster that was joined get the folders, unless a job brings them; the
    modules that settings name are brought by the job, or installed there.
    """
    if address == "local":
        return {"worker_process_setup_hook": _importer(str(Path(agentpeft.__file__).parents[1]))}
    installed = [Path(str(d.locate_file(""))) for d in distributions(name="agentpeft")]
    if any(folder.resolve() != ROOT for folder in installed) or is_in_ray_copy(ROOT):
        return {}
    return {"working_dir": str(ROOT)}


def _importer(folder: str) -> Callable[[], None]:
    """Returns what imports this process's own package in a worker; a closure goes by value.

    Ray puts the present folder first on a worker's path, and a checkout there has the package too.
    The folders of users' modules come last, in the driver's order.
    """
    users = list(user_folders)

    def import_own() -> None:
        import sys

        sys.path[:] = [path for path in sys.path if path not in users] + users
        sys.path.insert(0, folder)
        try:
            import agentpeft  # noqa: F401
        finally:
            sys.path.remove(folder)

    return import_own


def say_cause(error: BaseException) -> str:
    """Returns a line of an error: of a remote one the last, what was raised there, else the first.

    Ray's own errors end with advice.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-isinstance(error, RayTaskError)] if lines else type(error).__name__
