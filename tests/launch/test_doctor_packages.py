"""The doctor on packages and GPUs: every fault that it names is produced once."""

import pytest
from doctor_parts import faults, settings_of

from agentpeft.launch.checking import machine_checks
from agentpeft.launch.checking.machine_checks import Machine

CPU_TORCH = {"torch": "2.13.0+cpu"}


@pytest.fixture
def install(tmp_path):
    """Returns a folder with the metadata of packages."""

    def make(**versions):
        for name, version in versions.items():
            info = tmp_path / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n", "utf-8")
        return [str(tmp_path)]

    return make


@pytest.mark.parametrize(
    ("versions", "text", "is_fault"),
    [
        ({"torch": "2.1.0"}, "packages: torch 2.1.0, needed is >=2.9", True),
        ({"torch": "2.13.0"}, "packages: peft is missing, needed is >=0.18", True),
        ({"transformers": "6.0"}, "packages: transformers 6.0, needed is <5.20,>=5", False),
        (
            CPU_TORCH | {"torchvision": "0.28.0"},
            "torchvision 0.28.0 beside torch 2.13.0+cpu: transformers cannot be imported",
            True,
        ),
    ],
)
def test_packages_that_do_not_fit_are_named(install, versions, text, is_fault):
    search = install(**versions)
    found = list(machine_checks.check_packages(Machine(settings_of(), search)))
    (own,) = [f for f in found if text in f"{f.name}: {f.text}"]
    assert own.is_fault == is_fault and "pip" in own.remedy


def test_wheels_of_one_kind_are_no_bad_pair(install):
    search = install(torchvision="0.28.0+cpu", **CPU_TORCH)
    assert "beside" not in faults(machine_checks.check_packages, search=search)[0]


def test_vllm_that_is_missing_is_named(install):
    limits = settings_of().env_runners.model_copy(update={"engine": "vllm"})
    machine = Machine(settings_of().model_copy(update={"env_runners": limits}), install())
    texts = [f.text for f in machine_checks.check_packages(machine) if f.is_fault]
    assert any(text.startswith("vllm is missing") for text in texts)


def test_missing_gpus_are_named_unless_a_cluster_has_them(monkeypatch):
    runners = ("env_runners.num_env_runners=2", "env_runners.num_gpus_per_env_runner=16")
    asked = ("env_runners.engine=vllm", *runners, "learners.num_gpus_per_learner=32")
    text, is_fault = faults(machine_checks.check_gpu, *asked)
    assert text.startswith("gpu: the config asks for 64 GPU(s), and torch (CUDA: ") and is_fault
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert faults(machine_checks.check_gpu, *asked) == ("", False)
