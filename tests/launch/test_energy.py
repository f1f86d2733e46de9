"""The energy that the kernel and the GPUs count, and a machine that counts nothing."""

import pytest

from agentpeft.launch.costs.energy import ENERGY, EnergyMeter
from agentpeft.launch.run.pace import Pace, compute_cost, compute_energy

JOULES_PER_WH = 3600


class NoGpus:
    """NVML on a machine without a driver."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self):  # noqa: N802 (NVML's own name)
        raise self.NVMLError("driver not loaded")


class TwoGpus:
    """NVML with two GPUs, whose millijoules the test sets."""

    NVMLError = NoGpus.NVMLError

    def __init__(self):
        self.millijoules = [5_000, 7_000]

    def nvmlInit(self):  # noqa: N802
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.millijoules)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        return self.millijoules[handle]


@pytest.fixture
def powercap(tmp_path):
    """The kernel's folder of a machine with a package, its cores, and memory."""
    zones = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram"}
    for zone, name in zones.items():
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(f"{name}\n", "utf-8")
        (tmp_path / zone / "max_energy_range_uj").write_text("1000000000\n", "utf-8")
        set_joules(tmp_path, zone, 100)
    (tmp_path / "intel-rapl-mmio:0").mkdir()  # the package once more
    return tmp_path


def set_joules(powercap, zone, joules):
    (powercap / zone / "energy_uj").write_text(f"{joules * 1_000_000}\n", "utf-8")


def test_packages_and_memory_are_counted_and_cores_are_in_their_package(powercap):
    meter = EnergyMeter(powercap, NoGpus())
    for zone, joules in (("intel-rapl:0", 136), ("intel-rapl:0:0", 999), ("intel-rapl:0:1", 172)):
        set_joules(powercap, zone, joules)
    assert meter.take_wh() == pytest.approx((36 + 72) / JOULES_PER_WH)
    assert meter.take_wh() == 0


def test_a_counter_goes_on_after_its_largest_number(powercap):
    set_joules(powercap, "intel-rapl:0", 990)
    meter = EnergyMeter(powercap, NoGpus())
    set_joules(powercap, "intel-rapl:0", 26)
    assert meter.take_wh() == pytest.approx(36 / JOULES_PER_WH)


def test_gpus_are_counted_too(powercap):
    gpus = TwoGpus()
    meter = EnergyMeter(powercap, gpus)
    gpus.millijoules = [8_000, 8_000]
    assert meter.take_wh() == pytest.approx((3 + 1) / JOULES_PER_WH)


def test_a_machine_that_counts_nothing_or_tells_nobody_has_no_number(tmp_path, powercap):
    assert EnergyMeter(tmp_path / "none", NoGpus()).take_wh() is None
    for zone in powercap.glob("intel-rapl:*"):
        (zone / "energy_uj").unlink()
        (zone / "energy_uj").mkdir()  # as little to be read as root's file
    assert EnergyMeter(powercap, NoGpus()).take_wh() is None


def test_iterations_have_their_energy_and_a_success_its_cost(powercap):
    pace = Pace(2, EnergyMeter(powercap, NoGpus()))
    set_joules(powercap, "intel-rapl:0", 100 + JOULES_PER_WH)
    lines = [
        pace.end_iteration(1) | {"sample/outcome/success": 1.0},
        pace.end_iteration(2) | {"sample/outcome/success": 3.0},
    ]
    assert [line[ENERGY] for line in lines] == [1.0, 0.0]
    assert compute_energy(lines) == {"watt_hours": 1.0}
    assert compute_cost(lines)["watt_hours"] == 0.25
    assert compute_cost(lines[:1] * 0) == {"seconds": None, "tokens": None}
