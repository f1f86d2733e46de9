"""An agent in 20 lines: it asks the model, and prints the answer.

agentpeft gateway arithmetic_add --command "python examples/agents/openai_agent.py"
"""

import sys

from openai import OpenAI


def main() -> None:
    """Plays an episode, whose task is on standard input."""
    task = sys.stdin.read()
    client = OpenAI()  # it reads OPENAI_BASE_URL and OPENAI_API_KEY
    completion = client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": task}]
    )
    print(completion.choices[0].message.content)


if __name__ == "__main__":
    main()
