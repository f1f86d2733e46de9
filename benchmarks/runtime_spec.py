"""What an OCI runtime is told of a container: the limits and walls of the bubblewrap sandbox.

One thing cannot be said in OCI's words: that a second user namespace, in which none can be made,
lies inside of the first, and that these namespaces belong to a user of their own. So calls that
make namespaces are refused by the filter, and what the kernel counts for the owner of a namespace
is root's.
"""

import os
from typing import Any

from agentpeft.envs.os_interaction.sandboxes.inside import kernel, shell

_NUM_IDS = 65_536
_OWN_PROCESSES = 8
_PERIOD_US = 100_000
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount", "user")
_NAMESPACE_FLAGS = (
    *(0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000),
    *(0x2000_0000, 0x4000_0000),
)
"""Each CLONE_NEW… of `clone`."""
_DENIED_CALLS = [
    *("keyctl", "add_key", "request_key", "bpf", "userfaultfd", "perf_event_open"),
    *("open_by_handle_at", "io_setup", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("unshare", "setns"),
]
_SOCKET_FAMILIES = (1, 2, 10, 16)
_NUM_FAMILIES = 46
_MASKED = [
    *("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi"),
]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def compose_spec(config: dict[str, Any], arguments: list[str], name: str) -> dict[str, object]:
    """Returns the runtime's `config.json`: the limits and walls that ours has, in OCI's words."""
    mapping = [{"containerID": 0, "hostID": config["first_id"], "size": _NUM_IDS}]
    return {
        "ociVersion": "1.0.2",
        "process": compose_process(config, arguments),
        "root": {"path": "root", "readonly": False},
        "hostname": "sandbox",
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {
            "uidMappings": mapping,
            "gidMappings": mapping,
            "namespaces": [{"type": namespace} for namespace in _NAMESPACES],
            **({} if config["way"] == "bare" else _compose_limits(config, name)),
        },
    }


def _compose_limits(config: dict[str, Any], name: str) -> dict[str, object]:
    return {
        "cgroupsPath": f"/{name}",
        "resources": {
            "devices": [{"allow": False, "access": "rwm"}],
            "memory": {"limit": (config["memory_mib"] + config["disk_mib"]) << 20},
            "pids": {"limit": config["num_processes"] + _OWN_PROCESSES},
            "cpu": {"quota": int(config["cpus"] * _PERIOD_US), "period": _PERIOD_US},
        },
        "seccomp": _compose_filter(),
        "maskedPaths": _MASKED,
        "readonlyPaths": _READ_ONLY,
    }


def compose_process(config: dict[str, Any], arguments: list[str]) -> dict[str, object]:
    """Returns what the runtime is told of one process in a container."""
    capabilities = [f"CAP_{capability}" for capability in kernel.CAPABILITIES.split()]
    limits = {"NPROC": config["num_processes"] + _OWN_PROCESSES, "CORE": 0, **kernel.USER_LIMITS}
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": arguments,
        "env": [f"{name}={value}" for name, value in shell.ENVIRONMENT.items()],
        "cwd": "/root",
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        "rlimits": [
            {"type": f"RLIMIT_{name}", "hard": limit, "soft": limit}
            for name, limit in limits.items()
        ],
        "noNewPrivileges": True,
        "oomScoreAdj": 1000,
    }


def _compose_filter() -> dict[str, object]:
    """Returns `kernel.build_filter` in OCI's words, and no new namespace as docker's profile has.

    The second user namespace in which ours refuses them is not to be had of a runtime.
    """
    rules: list[dict[str, object]] = [
        {"names": _DENIED_CALLS, "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
    ]
    rules += [
        _refuse("clone", {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"})
        for flag in _NAMESPACE_FLAGS
    ]
    rules += [
        _refuse("socket", {"index": 0, "value": family, "op": "SCMP_CMP_EQ"})
        for family in range(_NUM_FAMILIES)
        if family not in _SOCKET_FAMILIES
    ]
    rules.append(_refuse("socket", {"index": 0, "value": _NUM_FAMILIES, "op": "SCMP_CMP_GE"}))
    architectures = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [architectures[os.uname().machine]],
        "syscalls": rules,
    }


def _refuse(call: str, condition: dict[str, object]) -> dict[str, object]:
    return {"names": [call], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": [condition]}
