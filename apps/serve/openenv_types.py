"""OpenEnv's server library, and what an action and an observation of a text environment are in it.

The library imports Gradio for a web page of its own, which is not served here: two thirds of the
time and memory of a start. Where Gradio is missing it does without, so it is told that it is.
"""

import sys

_gradio = sys.modules.get("gradio")
sys.modules["gradio"] = None  # type: ignore[assignment]  # an import raises ModuleNotFoundError
from openenv.core.env_server.http_server import HTTPEnvServer  # noqa: E402
from openenv.core.env_server.interfaces import Environment  # noqa: E402
from openenv.core.env_server.mcp_types import (  # noqa: E402
    CallToolAction,
    CallToolObservation,
    JsonRpcErrorCode,
    JsonRpcRequest,
    JsonRpcResponse,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    WSMCPMessage,
)
from openenv.core.env_server.serialization import serialize_observation  # noqa: E402
from openenv.core.env_server.types import (  # noqa: E402
    Action,
    EnvironmentMetadata,
    Observation,
    State,
    WSCloseMessage,
    WSErrorCode,
    WSErrorResponse,
    WSObservationResponse,
    WSResetMessage,
    WSStateMessage,
    WSStateResponse,
    WSStepMessage,
)
from pydantic import ConfigDict, Field  # noqa: E402

if _gradio is None:
    del sys.modules["gradio"]
else:
    sys.modules["gradio"] = _gradio

__all__ = [
    "CallToolAction",
    "CallToolObservation",
    "Environment",
    "EnvironmentMetadata",
    "HTTPEnvServer",
    "JsonRpcErrorCode",
    "JsonRpcRequest",
    "JsonRpcResponse",
    "ListToolsAction",
    "ListToolsObservation",
    "Observation",
    "State",
    "TextAction",
    "TextObservation",
    "Tool",
    "WSCloseMessage",
    "WSErrorCode",
    "WSErrorResponse",
    "WSMCPMessage",
    "WSObservationResponse",
    "WSResetMessage",
    "WSStateMessage",
    "WSStateResponse",
    "WSStepMessage",
    "serialize_observation",
]


class TextAction(Action):  # type: ignore[misc]
    """One turn of the agent. A JSON number is its text: some clients parse what looks like one."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    text: str = Field(description="What the agent says: one turn.")


class TextObservation(Observation):  # type: ignore[misc]
    """What the agent reads: the whole prompt after a reset, only the new text after a step."""

    text: str = Field(description="What the environment says.")
