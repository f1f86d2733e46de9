"""vLLM's engines, one for each way of serving: a start takes tens of seconds."""

import pytest
from vllm_parts import BOTH, SETTINGS, STOP, make_model

from agentpeft.policies.engines.vllm.start import start_engine


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The tiny model, saved."""
    path = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(path)
    return path


@pytest.fixture(
    scope="module",
    params=[
        "fused",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in BOTH if kind != "fused"),
    ],
)
def engine(vllm, folder, request):
    """An engine of each kind, which has not seen an adapter yet."""
    engine = start_engine(folder, [STOP], BOTH[request.param])
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def fused(vllm, folder):
    """An engine that fuses."""
    engine = start_engine(folder, [STOP], SETTINGS)
    yield engine
    engine.close()
