"""The limits of the sandboxes that tests share: small, so that to exhaust them is quick."""

from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxLimits

SMALL = SandboxLimits(
    memory_mib=128, num_processes=40, disk_mib=16, num_inodes=1000, max_output_chars=2000
)
