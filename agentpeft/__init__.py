"""AgentPEFT: text environments for LLM agents, and LoRA training on them by RL.

In a checkout, and in a working directory that Ray has uploaded, the rooms `envs`, `policies` and
`launch` lie beside this folder; in a wheel they are in it. The links in this folder are for editors
and type checkers, which read the tree without running this file.
"""

from pathlib import Path

_checkout = Path(__file__).resolve().parents[1]
if (_checkout / "policies" / "settings" / "config.py").is_file():  # no package beside a wheel
    __path__.insert(0, str(_checkout))
