"""The doctor: every fault that it names is produced once; a sound machine has none."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

import grpc
import pytest
from doctor_parts import GPU, faults, settings_of

from agentpeft.envs import SettingsError
from agentpeft.launch.checking import machine_checks
from agentpeft.launch.checking.machine_checks import Machine, find_faults
from agentpeft.launch.doctor import main
from agentpeft.policies.models import load
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.settings.config import TinySettings


def test_a_sound_machine_runs_the_tiny_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["arithmetic_add"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1])["can_run"]
    for name in ("packages", "gpu", "ray", "model", "mask", "first step", "delivery", "gradient"):
        assert any(line.startswith(f"ok    {name}: ") for line in lines), name


def test_a_config_that_cannot_run_has_status_1_and_a_remedy(capsys, tmp_path):
    config = tmp_path / "any.toml"
    config.write_text('model = {name = "./nowhere"}', "utf-8")
    assert main([str(config), "--no-ladder"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAULT model: model.name './nowhere' is no folder" in lines
    assert any(line.strip().startswith("-> name a hub id") for line in lines)
    assert json.loads(lines[-1])["faults"] == ["model"]


def test_full_disks_are_named(tmp_path):
    changes = {"output": tmp_path / "new", "min_free_mib": 1 << 40}
    text, is_fault = faults(machine_checks.check_disk, **changes)
    assert f"MiB free in {tmp_path}" in text and "shared memory: " in text and is_fault
    alone, _ = faults(machine_checks.check_disk, "env_runners.num_env_runners=0", **changes)
    assert "shared memory" not in alone


def test_bfloat16_on_a_processor_without_instructions_for_it_is_a_note(monkeypatch):
    monkeypatch.setattr(load, "multiplies_bfloat16", lambda: False)
    text, is_fault = faults(machine_checks.check_dtype, "model.dtype=bfloat16")
    assert "no instructions for bfloat16" in text and not is_fault
    on_gpus = *GPU, "env_runners.num_gpus_per_env_runner=1"
    assert faults(machine_checks.check_dtype, "model.dtype=bfloat16", *on_gpus) == ("", False)
    assert faults(machine_checks.check_dtype) == ("", False)
    text, _ = faults(machine_checks.check_dtype, "learners.autocast=bfloat16")
    assert text.startswith("learners: this processor has no instructions for bfloat16")
    autocast_on_gpus = "learners.autocast=bfloat16", *on_gpus
    assert faults(machine_checks.check_dtype, *autocast_on_gpus) == ("", False)
    monkeypatch.setattr(load, "multiplies_bfloat16", lambda: True)
    assert faults(machine_checks.check_dtype, "model.dtype=bfloat16") == ("", False)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RAY_AUTH_MODE": "tokens"}, "RAY_AUTH_MODE is 'tokens'"),
        ({"RAY_AUTH_MODE": "token", "RAY_ADDRESS": "auto"}, "RAY_AUTH_MODE is token"),
        ({"RAY_ADDRESS": "ray://127.0.0.1:9"}, "no cluster answers at RAY_ADDRESS=ray://"),
        ({"RAY_ADDRESS": "head"}, "RAY_ADDRESS=head has no port"),
    ],
)
def test_rays_faults_are_named(monkeypatch, tmp_path, variables, expected):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text, is_fault = faults(machine_checks.check_ray)
    assert f"ray: {expected}" in text and is_fault
    assert faults(machine_checks.check_ray, "env_runners.num_env_runners=0") == ("", False)


def test_a_cluster_that_answers_is_no_fault(monkeypatch):
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    assert faults(machine_checks.check_ray) == ("", False)
    server.stop(None)


def test_what_listens_and_says_nothing_is_no_cluster(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        text, is_fault = faults(machine_checks.check_ray)
    assert "no cluster answers at RAY_ADDRESS=127.0.0.1:" in text and is_fault


HUB_MODEL = "model.name=nobody/nothing"


def test_a_model_that_cannot_be_fetched_is_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text, is_fault = faults(machine_checks.check_model, HUB_MODEL)
    assert text == "model: nobody/nothing is not in the cache, and HF_HUB_OFFLINE is set"
    assert is_fault
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    text, is_fault = faults(machine_checks.check_model, HUB_MODEL)
    assert text.endswith("and no hub answers") and is_fault


def test_a_hub_that_greets_and_then_says_nothing_is_no_hub(monkeypatch, tmp_path):
    asked, is_over = [], threading.Event()

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if self.path.startswith("/api"):
                is_over.wait(30)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr("agentpeft.envs.tasks.hub._CHECK_TIMEOUT_S", 0.5)
        text, is_fault = faults(machine_checks.check_model, HUB_MODEL)
        is_over.set()
        server.shutdown()
    assert text.endswith("and no hub answers") and is_fault
    assert asked == ["/api/models/nobody/nothing/revision/main"]


def test_a_name_that_no_hub_has_is_named():
    text, is_fault = faults(machine_checks.check_model, "model.name=a/b/c")
    assert text == "model: model.name 'a/b/c' is no folder, nor a hub id" and is_fault


def test_a_model_in_the_cache_is_no_fault(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--nobody--nothing"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc", "utf-8")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "config.json").write_text("{}", "utf-8")
    assert faults(machine_checks.check_model, HUB_MODEL) == ("", False)


@pytest.mark.parametrize("missing", ["weights", "config", "tokenizer"])
def test_a_model_without_a_part_is_named(tmp_path, missing):
    files = {"weights": "model.safetensors", "config": "config.json", "tokenizer": "tokenizer.json"}
    for part, name in files.items():
        if part != missing:
            (tmp_path / name).touch()
    text, is_fault = faults(machine_checks.check_model, f"model.name={tmp_path}")
    assert text == f"model: model.name '{tmp_path}' has no {missing}" and is_fault


@pytest.mark.parametrize("kind", ["LORA", "IA3"])
def test_a_pickled_adapter_is_as_good_as_another(tmp_path, kind):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": kind}), "utf-8")
    adapter = f"model.adapter={tmp_path}"
    assert "has no adapter_model.safetensors" in faults(machine_checks.check_model, adapter)[0]
    (tmp_path / "adapter_model.bin").touch()
    text, is_fault = faults(machine_checks.check_model, adapter)
    assert is_fault == ("is no LoRA adapter" in text) == (kind != "LORA")


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("hidden_size", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_the_engine_is_started_where_the_run_has_it_here(tmp_path, monkeypatch, hidden_size):
    base = build_tiny(TinySettings(hidden_size=hidden_size, num_layers=1), ["some text"])
    base.model.save_pretrained(tmp_path)
    base.tokenizer.save_pretrained(tmp_path)
    words = "env_runners.engine=vllm", f"model.name={tmp_path}"
    machine = Machine(settings_of(*words, "env_runners.kv_cache_gib=0.1"))
    (finding,) = machine_checks.check_engine(machine)
    expected = "vLLM on a CPU takes heads of 32" if hidden_size == 32 else "vLLM starts in "
    assert finding.text.startswith(expected) and finding.is_fault == (hidden_size == 32)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not list(machine_checks.check_engine(machine))


DB_BENCH = "environment.id=AgentPEFT/DBBench-v0"


def test_a_task_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "tasks.json").write_text("{", "utf-8")
    data = f"environment.kwargs.data={tmp_path / 'tasks.json'}"
    text, is_fault = faults(
        machine_checks.check_environment, DB_BENCH, data, "evaluation.num_tasks=0"
    )
    assert "environment: " in text and "tasks.json" in text and is_fault


def test_a_missing_task_file_is_named(tmp_path):
    data = f"environment.kwargs.data={tmp_path / 'tasks.json'}"
    overrides = (DB_BENCH, data, "evaluation.num_tasks=0")
    text, is_fault = faults(machine_checks.check_environment, *overrides)
    assert "tasks.json" in text and is_fault


def test_a_missing_bubblewrap_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    shell = ("environment.id=AgentPEFT/OSInteraction-v0", "evaluation.num_tasks=0")
    sandbox = 'environment.kwargs.sandbox="bubblewrap"'
    text, is_fault = faults(machine_checks.check_environment, *shell, sandbox)
    assert "environment: no bubblewrap: apt-get install bubblewrap" in text and is_fault


def test_a_database_server_that_does_not_answer_is_named():
    database = "environment.kwargs.database=mysql://root@127.0.0.1:9"
    text, is_fault = faults(machine_checks.check_environment, DB_BENCH, database)
    assert "MySQL" in text and "127.0.0.1" in text and is_fault


class NoImages(BaseHTTPRequestHandler):
    """A docker daemon that has nothing, and whose registry cannot be reached."""

    def do_GET(self):
        is_image = "images" in self.path
        known = [] if "containers" in self.path else {"ApiVersion": "1.44", "message": "none"}
        text = json.dumps(known).encode()
        self.send_response(404 if is_image else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


@pytest.mark.parametrize("has_daemon", [False, True])
def test_a_missing_docker_daemon_or_image_is_named(monkeypatch, has_daemon):
    server = HTTPServer(("127.0.0.1", 0), NoImages)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    port = server.server_address[1] if has_daemon else 9
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
    database = "environment.kwargs.database=docker://nothing:1"
    text, is_fault = faults(machine_checks.check_environment, DB_BENCH, database)
    server.shutdown()
    server.server_close()
    assert ("nothing:1" if has_daemon else "docker") in text and is_fault


def test_training_looks_first_and_quickly():
    start_s = time.process_time()
    find_faults(Machine(settings_of()))
    assert time.process_time() - start_s < 1.0
    with pytest.raises(SettingsError, match="gpu: the config asks for 1 GPU"):
        find_faults(Machine(settings_of(*GPU)))
