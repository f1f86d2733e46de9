"""vLLM that does not start: the line that the user sees names the cause in vLLM's own process."""

import asyncio
import logging
import re
import shutil
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from vllm_parts import SETTINGS, STOP

from agentpeft.envs import SettingsError
from agentpeft.policies.engines.vllm.start import FLASHINFER_SAMPLER, make_variables, start_engine

ON_GPU = replace(SETTINGS, gpu_share=1.0)
BROKEN = """
import os, sys

class Breaks:
    def find_spec(self, name, path=None, target=None):
        if name == "vllm.v1.worker.gpu_model_runner":
            {how}

if "spawn_main" in " ".join(sys.orig_argv):
    sys.meta_path.insert(0, Breaks())
"""
WAYS = {
    "raise ModuleNotFoundError(\"No module named 'flashinfer'\")": (
        "ModuleNotFoundError: No module named 'flashinfer'"
    ),
    "raise MemoryError": "MemoryError",
    "os.kill(os.getpid(), 9)": "'EngineCore': -9|its process ended without an exception",
}


@pytest.mark.slow
@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        pytest.param(*way, marks=[pytest.mark.long] * (number > 0))
        for number, way in enumerate(WAYS.items())
    ],
)
def test_the_cause_in_vllms_own_process_is_in_the_line(folder, tmp_path, monkeypatch, how, cause):
    (tmp_path / "sitecustomize.py").write_text(BROKEN.format(how=how), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with pytest.raises(SettingsError, match="vLLM does not start on") as caught:
        start_engine(folder, [STOP], SETTINGS)
    assert re.search(cause, str(caught.value))
    assert "\n" not in str(caught.value) and "above" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.usefixtures("vllm")
def test_weights_that_are_cut_off_are_named(folder, tmp_path):
    broken = tmp_path / "model"
    shutil.copytree(folder, broken)
    path = broken / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SettingsError, match="SafetensorError: "):
        start_engine(broken, [STOP], SETTINGS)


def test_without_flashinfer_vllm_samples_by_itself_and_says_so(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.delenv(FLASHINFER_SAMPLER, raising=False)
    assert make_variables(ON_GPU)[FLASHINFER_SAMPLER] == "0"
    (record,) = caplog.records
    assert "FlashInfer is not installed" in record.getMessage()
    assert FLASHINFER_SAMPLER not in make_variables(SETTINGS)
    monkeypatch.setenv(FLASHINFER_SAMPLER, "1")
    assert make_variables(ON_GPU)[FLASHINFER_SAMPLER] == "1"


def test_the_first_log_probabilities_need_no_compiler(vllm, folder, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "/no/compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with closing(start_engine(folder, [STOP], replace(SETTINGS, needs_adapter=False))) as engine:
        (logprobs,) = asyncio.run(engine.score([np.arange(1, 5)]))
    assert len(logprobs) == 3 and not list(tmp_path.iterdir())


def test_with_flashinfer_vllm_chooses(monkeypatch, tmp_path):
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert FLASHINFER_SAMPLER not in make_variables(ON_GPU)
