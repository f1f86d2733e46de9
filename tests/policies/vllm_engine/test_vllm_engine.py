"""How the engine over vLLM behaves when it is used wrongly, given up, or killed."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_parts import children_of, seconds_until_gone, shared_files
from vllm_parts import make_adapter, request_of

from agentpeft.policies.errors import EngineError

OWNER = """
import sys, time
from pathlib import Path
from vllm_parts import SETTINGS, make_adapter
from agentpeft.policies.engines.vllm.start import start_engine
engine = start_engine(Path(sys.argv[1]), [39], SETTINGS)
engine.load_adapter(make_adapter(1))
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_cancelled_request_is_forgotten_and_its_session_goes_on(fused):
    fused.load_adapter(make_adapter(1))
    fused.update_sessions(opened=["a"])

    async def scenario():
        task = asyncio.create_task(fused.generate(request_of(max_new_tokens=100)))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        again = await fused.generate(request_of(max_new_tokens=3))
        return task.cancelled(), len(again.token_ids)

    assert asyncio.run(scenario()) == (True, 3)
    fused.update_sessions(closed=["a"])
    assert fused.load_adapter(make_adapter(2)).version == 2


@pytest.mark.slow
def test_sessions_that_cannot_ask_are_errors(fused):
    with pytest.raises(EngineError, match="not open"):
        asyncio.run(fused.generate(request_of("nobody")))
    fused.update_sessions(opened=["a"])

    async def scenario():
        first = asyncio.create_task(fused.generate(request_of(max_new_tokens=100)))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="under way"):
            await fused.generate(request_of())
        with pytest.raises(EngineError, match="under way"):
            fused.load_adapter(make_adapter(3))
        fused.update_sessions(closed=["a"])
        with pytest.raises(EngineError, match="was closed"):
            await first

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_environment_and_the_main_module_are_as_before(fused):
    assert not [name for name in os.environ if name.startswith("AGENTPEFT_PARENT")]
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ
    assert "tcmalloc" not in os.environ.get("LD_PRELOAD", "")
    assert Path(getattr(sys.modules["__main__"], "__file__", None) or "").name != "owned_process.py"


@pytest.mark.slow
def test_a_killed_process_of_vllm_is_an_error_and_not_a_hang(fused):
    fused.update_sessions(opened=["a"])

    async def scenario():
        asked = asyncio.create_task(fused.generate(request_of(max_new_tokens=100)))
        await asyncio.sleep(0.02)
        for pid in children_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="vLLM"):
            await asyncio.wait_for(asked, 20)

    asyncio.run(scenario())
    with pytest.raises(EngineError, match="gone"):
        fused.load_adapter(make_adapter(4))


@pytest.mark.slow
def test_nothing_is_left_of_an_engine_whose_owner_was_killed(vllm, folder):
    """SIGKILL gives the owner no moment to end anything."""
    command = [sys.executable, "-c", OWNER, str(folder)]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        while (line := owner.stdout.readline()) != b"up\n":
            assert line
        children = children_of(owner.pid)
        shared = [path for pid in (owner.pid, *children) for path in shared_files(pid)]
        assert children
        owner.kill()
    seconds_until_gone(children, 5)
    assert not [path for path in shared if Path(path).exists()]
