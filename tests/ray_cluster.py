"""A Ray head of the tests' own, stopped by its process id."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def free_ports(number: int) -> list[int]:
    """Returns ports of this machine that nothing listens on."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def make_python(folder: Path) -> Path:
    """Returns a Python with all that this one has installed, except the package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    # Path entries of a .pth file are not searched for .pth files: the editable install's is left
    own = next(p for p in sys.path if p.endswith("site-packages"))
    (packages / "dependencies.pth").write_text(own, encoding="utf-8")
    return folder / "bin" / "python"


@contextmanager
def ray_head(python: Path, changes: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Yields the environment that `ray job submit` needs for a head that runs on `python`.

    `HEAD_ADDRESS` in it is for those who join. `changes` are of the head's own; it has no
    authentication otherwise. Its folder has a short name, since Ray's sockets lie in it.
    """
    port, dashboard, agent, client = free_ports(4)
    temp_dir = tempfile.mkdtemp(prefix="ray-")
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"} | dict(changes or {})
    env.pop("RAY_ADDRESS", None)
    env["PATH"] = f"{python.parent}{os.pathsep}{env['PATH']}"
    command = [str(python), "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += [f"--port={port}", f"--dashboard-port={dashboard}", f"--temp-dir={temp_dir}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
    command += ["--num-cpus=2", "--include-dashboard=true", "--disable-usage-stats"]
    head = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        _wait_for(f"http://127.0.0.1:{dashboard}/api/version", head)
        own = {"HEAD_ADDRESS": f"127.0.0.1:{port}"}
        yield env | own | {"RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}"}
    finally:
        head.terminate()
        with suppress(subprocess.TimeoutExpired):
            head.wait(30)
        head.kill()
        shutil.rmtree(temp_dir, ignore_errors=True)


def _wait_for(url: str, head: "subprocess.Popen[bytes]") -> None:
    for _ in range(120):
        assert head.poll() is None, "the head has ended"
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except urllib.error.HTTPError:
            return  # it asks for a token
        except (OSError, ConnectionError):
            time.sleep(0.5)
        else:
            return
    raise TimeoutError(url)
