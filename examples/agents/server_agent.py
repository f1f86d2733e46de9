"""An agent that is a server, for programs that take long to start. It needs Python alone.

python examples/agents/server_agent.py 9000 &
agentpeft gateway quickstart --url http://localhost:9000/play
"""

import json
import sys
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


def play(told: dict[str, str]) -> None:
    """Plays an episode turn by turn, by what a program is told in variables."""
    place = urlsplit(told["AGENTPEFT_ENV_URL"])
    client = HTTPConnection(place.netloc)
    headers = {"Authorization": f"Bearer {told['OPENAI_API_KEY']}"}

    def post(path: str, body: dict[str, Any]) -> Any:
        client.request("POST", path, json.dumps(body), headers)
        return json.load(client.getresponse())

    messages = [{"role": "user", "content": told["AGENTPEFT_TASK"]}]
    is_over = False
    while not is_over:
        answer = post("/v1/chat/completions", {"model": "policy", "messages": messages})
        messages.append(answer["choices"][0]["message"])
        result = post(f"{place.path}/step", {"action": messages[-1]["content"]})
        messages.append({"role": "user", "content": result["observation"]})
        is_over = result["is_over"]
    client.close()


class Server(BaseHTTPRequestHandler):
    """Plays an episode for each POST; 500 where it fails is the agent's failure."""

    def do_POST(self) -> None:
        """Plays, and answers once the episode is over."""
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            play(told)
            status = 200
        except (OSError, KeyError, ValueError):
            status = 500
        self.send_response(status)
        self.end_headers()


if __name__ == "__main__":
    ThreadingHTTPServer.request_queue_size = 1024  # episodes that begin at once
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Server).serve_forever()
