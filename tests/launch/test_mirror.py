"""A run behind `HF_ENDPOINT`: its base comes from the mirror that the variable names."""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from tiny_run import ANOTHER_MODEL, TINY

from agentpeft.launch.run.run_folder import read_start
from agentpeft.policies.models.tiny_cache import load_tiny

COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture
def base(tmp_path, monkeypatch):
    """The folder of a small model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.toml").write_text(TINY, "utf-8")
    load_tiny(read_start(["tiny.toml"], ["warm_start.num_steps=0"]).settings)
    (folder,) = (tmp_path / "cache").glob("tiny-*")
    return folder


@pytest.fixture
def mirror(base):
    """A mirror of the hub that has one model, some/model; its URL, and the paths asked for."""
    files = {path.name: path.read_bytes() for path in base.iterdir()}
    listed = [
        {"type": "file", "path": name, "size": len(content), "oid": COMMIT}
        for name, content in files.items()
    ]
    answers = {
        "/": b"a mirror",
        "/api/models/some/model/revision/main": json.dumps({"id": "some/model", "sha": COMMIT}),
        f"/api/models/some/model/tree/{COMMIT}": json.dumps(listed),
        **{f"/some/model/resolve/{COMMIT}/{name}": content for name, content in files.items()},
    }
    asked = []

    class Mirror(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            content = answers.get(self.path.partition("?")[0])
            self.send_response(404 if content is None else 200)
            content = content.encode() if isinstance(content, str) else content or b""
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hash(content):x}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 (the library's name)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def command(tmp_path, endpoint, *words):
    """Returns what a command of the user's has printed, with its status; the hub's cache is new."""
    unset = ("HF_HUB_OFFLINE", "HF_HUB_CACHE")
    environ = {key: value for key, value in os.environ.items() if key not in unset}
    return subprocess.run(
        [sys.executable, "-m", "agentpeft.launch.cli", *words],
        env=environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub")},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


@pytest.mark.slow
def test_a_run_takes_its_base_from_the_mirror(mirror, tmp_path):
    endpoint, asked = mirror
    words = ["tiny.toml", "model.name=some/model", "training.num_iterations=1", *ANOTHER_MODEL]
    done = command(tmp_path, endpoint, "train", *words, "warm_start.num_steps=2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["adapter"]
    assert f"/some/model/resolve/{COMMIT}/model.safetensors" in asked


@pytest.mark.long
@pytest.mark.slow
def test_what_the_mirror_lacks_is_one_line(mirror, tmp_path):
    endpoint, asked = mirror
    words = ["tiny.toml", "model.name=other/model", *ANOTHER_MODEL]
    done = command(tmp_path, endpoint, "train", *words)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "'other/model' is no folder, and cannot be had from the Hugging Face hub" in line
    assert any("other/model" in path for path in asked)
    assert not (tmp_path / "outputs").exists()
