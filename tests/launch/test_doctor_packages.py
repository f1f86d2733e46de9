"""The doctor on packages, drivers and GPUs: every fault that it names is produced once."""

import pytest
from doctor_parts import GPU, faults, settings_of

from agentpeft.launch.checking import machine_checks
from agentpeft.launch.checking.machine_checks import Machine

CPU_TORCH = {"torch": "2.13.0+cpu"}


@pytest.fixture
def install(tmp_path):
    """Returns a folder with the metadata of packages, and torch's note of its CUDA."""

    def make(cuda="None", **versions):
        for name, version in versions.items():
            info = tmp_path / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n", "utf-8")
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "version.py").write_text(f"cuda: Optional[str] = {cuda}\n", "utf-8")
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


def test_a_gpu_that_torch_cannot_use_is_named(install):
    search = install(**CPU_TORCH)
    text, is_fault = faults(machine_checks.check_gpu, *GPU, search=search)
    assert "this torch is built without CUDA" in text and is_fault


def test_a_missing_driver_is_named(install, tmp_path):
    search = install(cuda="'12.8'", torch="2.13.0")
    text, is_fault = faults(machine_checks.check_gpu, *GPU, search=search, proc=tmp_path)
    assert "no NVIDIA driver is loaded" in text and is_fault
    assert faults(machine_checks.check_gpu, search=search, proc=tmp_path) == ("", False)


def driver(proc, version, num_gpus):
    """Writes what a driver says of itself."""
    folder = proc / "driver" / "nvidia"
    for number in range(num_gpus):
        (folder / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
    (folder / "version").write_text(text, "utf-8")


def test_a_driver_that_is_too_old_for_torch_is_named(install, tmp_path):
    search = install(cuda="'13.0'", torch="2.13.0")
    driver(tmp_path, "570.86.15", num_gpus=1)
    text, is_fault = faults(machine_checks.check_gpu, *GPU, search=search, proc=tmp_path)
    assert text == "gpu: the NVIDIA driver is 570, and torch's CUDA 13.0 needs 580 or later"
    assert is_fault


def test_too_few_gpus_are_named_unless_a_cluster_has_them(install, tmp_path, monkeypatch):
    search = install(cuda="'12.8'", torch="2.13.0")
    driver(tmp_path, "580.65.06", num_gpus=2)
    two = ("env_runners.num_env_runners=2", "env_runners.num_gpus_per_env_runner=1.0", *GPU)
    changes = {"search": search, "proc": tmp_path}
    text, is_fault = faults(machine_checks.check_gpu, *two, **changes)
    assert text == "gpu: the config asks for 3 GPUs, and there are 2" and is_fault
    assert faults(machine_checks.check_gpu, *two[1:], **changes) == ("", False)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert faults(machine_checks.check_gpu, *two, **changes) == ("", False)
