"""One call of a tool in a process of its own, which ends with the process that asked for it.

`python -m agentpeft.apps.training_tool.one_call NAME PARENT_PID` reads the arguments as JSON from
standard input and prints the answer.
"""

import sys

from agentpeft.apps.training_tool.training_tool import REWARDS_SCHEMA, run, run_rewards
from agentpeft.launch.run.standard_streams import reserved_stdout
from agentpeft.policies.workers.owned_process import end_with


def main() -> None:
    """Does the call that the command line names."""
    name, parent = sys.argv[1:]
    end_with(int(parent))
    call = run_rewards if name == REWARDS_SCHEMA["function"]["name"] else run
    arguments = sys.stdin.read()
    with reserved_stdout() as output:
        output.write(call(arguments))


if __name__ == "__main__":
    main()
