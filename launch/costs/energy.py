"""The energy that a machine counts itself: its processors by RAPL, its NVIDIA GPUs by NVML.

The counters are of the whole machine, whoever keeps it busy. Linux shows RAPL's to root alone
unless told otherwise. A counter of RAPL that goes round twice between two readings (200 W take
20 minutes to a round of 262 kJ) is missed once.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")
ENERGY = "energy/wh"
"""The metric of an iteration's watt-hours; a machine that counts nothing has none."""
_JOULES_PER_WH = 3600.0


class EnergyMeter:
    """Reads what the machine has used since the last reading."""

    def __init__(self, powercap: Path = POWERCAP, nvml: Any = None) -> None:
        """`powercap` is the kernel's folder, `nvml` a module as `pynvml` (None: it, if installed).

        The first reading is taken now.
        """
        self._powercap, self._nvml = powercap, _import_nvml() if nvml is None else nvml
        self._last = self._read()

    def take_wh(self) -> float | None:
        """Returns the watt-hours since the last call; None where nothing is counted."""
        last, self._last = self._last, self._read()
        if not self._last:
            return None
        joules = 0.0
        for name, (now, round_joules) in self._last.items():
            used = now - last.get(name, (now, 0.0))[0]
            joules += used if used >= 0 else used + round_joules
        return joules / _JOULES_PER_WH

    def _read(self) -> dict[str, tuple[float, float]]:
        """Returns the joules of each counter, and after how many it begins anew (0: never)."""
        return _read_rapl(self._powercap) | _read_nvml(self._nvml)


def _read_rapl(powercap: Path) -> dict[str, tuple[float, float]]:
    """Returns the counters of packages and memory; cores are a part of their package."""
    counters = {}
    for zone in sorted(powercap.glob("intel-rapl:*")):
        try:
            name = (zone / "name").read_text(encoding="utf-8").strip()
            joules = int((zone / "energy_uj").read_text(encoding="utf-8")) / 1e6
            round_joules = int((zone / "max_energy_range_uj").read_text(encoding="utf-8")) / 1e6
        except (OSError, ValueError):  # not for this user, or a zone without a counter
            continue
        if name.startswith("package") or name == "dram":
            counters[zone.name] = joules, round_joules
    return counters


def _import_nvml() -> Any:
    try:
        return import_module("pynvml")
    except ImportError:
        return None


def _read_nvml(nvml: Any) -> dict[str, tuple[float, float]]:
    if nvml is None:
        return {}
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        millijoules = [nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
    except nvml.NVMLError:  # no driver, or GPUs that do not count
        return {}
    return {f"gpu{index}": (value / 1e3, 0.0) for index, value in enumerate(millijoules)}
