"""Serves environments to others over HTTP and WebSocket, in OpenEnv's protocol.

```sh
agentpeft serve --port 8000
agentpeft serve AgentPEFT/DBBench-v0 split=test AgentPEFT/Arithmetic-v0 num_digits=3
agentpeft serve AgentPEFT/Arithmetic-v0 --allow-oracle --model RUN
agentpeft serve --host 0.0.0.0 --token-file tokens.txt --tls-cert cert.pem --tls-key key.pem
```

Without words, all environments of the suite are served. An environment is at the path of its id,
the first one at / too; KEY=VALUE are arguments of the environment before them. The first line on
standard output is JSON with `url`. `AgentPEFT/Remote-v0` plays there, and so does any OpenEnv
client. `url` in a browser is a page to play by hand; the oracle and a policy play the same task
after you, where --allow-oracle and --model say so.

Exit status: 0 stopped by SIGTERM or Ctrl-C; 1 it cannot listen; 2 wrong settings.
"""

import errno
import ipaddress
import json
import re
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

from typer import Argument, Option

from agentpeft.envs import ENV_IDS, SettingsError
from agentpeft.envs.core.errors import check_count, check_duration
from agentpeft.envs.registration import find_spec
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.standard_streams import reserved_stdout
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.environment_kwargs import parse_value

_limit = partial(Option, rich_help_panel="Limits")
_secret = partial(Option, rich_help_panel="Who may come in")
_END_S = 10
"""How long sessions that go on at the end may take to stop."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+-]+")
main = CommandLine()


@main.add(help=__doc__)
def serve(  # noqa: PLR0913 (each is an option)
    words: Annotated[
        list[str] | None,
        Argument(metavar="ENV_ID|KEY=VALUE", help="Environments, each with its arguments."),
    ] = None,
    *,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port; 0 takes a free one.")] = 8000,
    token: Annotated[
        list[str] | None, _secret(envvar="AGENTPEFT_TOKEN", help="Bearer token; may be repeated.")
    ] = None,
    token_file: Annotated[Path | None, _secret(help="File with a token in each line.")] = None,
    tls_cert: Annotated[Path | None, _secret(help="Certificate chain (PEM), for TLS.")] = None,
    tls_key: Annotated[Path | None, _secret(help="Its private key (PEM).")] = None,
    allow_oracle: Annotated[
        bool, _secret("--allow-oracle", help="Tell clients how a perfect agent acts.")
    ] = False,
    model: Annotated[
        Path | None,
        Option(metavar="RUN|ADAPTER", help="A policy that plays on the page too, greedily."),
    ] = None,
    tools: Annotated[
        bool, Option("--tools", help="Clients call tools, of which the prompts speak.")
    ] = False,
    client_kwargs: Annotated[
        str, _secret(help="Arguments that clients may set, by comma; * is all: trusted ones only.")
    ] = "split",
    max_sessions: Annotated[int, _limit(help="Sessions at a time.")] = 256,
    idle_s: Annotated[float, _limit(help="Seconds of silence after which one is closed.")] = 900.0,
    max_message_kib: Annotated[int, _limit(help="Size of a message.")] = 1024,
    max_rate: Annotated[
        float | None, _limit(help="Messages a second from one address; none: no limit.")
    ] = None,
) -> int:
    """Serves until it is told to stop. Raises: SettingsError, OSError."""
    for name, number in (("--max-sessions", max_sessions), ("--max-message-kib", max_message_kib)):
        check_count(name, number)
    check_duration("--idle-s", idle_s)
    if max_rate is not None:
        check_duration("--max-rate", max_rate)
    tokens = _read_tokens(token or [], token_file)
    _check_address(host, port, tokens)
    try:
        from agentpeft.apps.serve import server
        from agentpeft.apps.serve.gate import Limits
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error}: pip install 'agentpeft[serve]'") from error
    with ExitStack() as stack:
        environments = _read_environments(words or list(ENV_IDS))
        tls = _check_tls(tls_cert, tls_key)
        lines = stack.enter_context(reserved_stdout())
        listener = stack.enter_context(_listen(host, port))
        policy = None
        if model is not None:
            from agentpeft.apps.lab.playing.seated_policy import open_policy

            policy = stack.enter_context(open_policy(Settings(), model))
        options = server.Options(
            environments=environments,
            has_tools=tools,
            tokens=tokens,
            tls=tls,
            has_oracle=allow_oracle,
            policy=policy,
            client_kwargs=frozenset(
                filter(None, (name.strip() for name in client_kwargs.split(",")))
            ),
            limits=Limits(max_sessions, idle_s, max_message_kib * 1024, max_rate),
            end_s=_END_S,
        )
        server.run(options, listener, partial(_tell, lines))
    return 0


def _read_environments(words: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Returns ids with their arguments. Raises: SettingsError."""
    environments: list[tuple[str, dict[str, Any]]] = []
    for word in words:
        name, is_argument, text = word.partition("=")
        if not is_argument:
            find_spec(word)
            environments.append((word, {}))
        elif not environments:
            raise SettingsError(f"{word!r} stands before any environment; first name its id")
        else:
            environments[-1][1][name] = parse_value(text)
    ids = [env_id for env_id, _ in environments]
    for env_id in ids:
        if ids.count(env_id) > 1:
            raise SettingsError(f"{env_id!r} is named twice; start another server for it")
    return environments


def _read_tokens(tokens: Sequence[str], path: Path | None) -> tuple[str, ...]:
    """Returns all tokens. Raises: SettingsError, OSError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path else []
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: expected a token in each line, got other bytes") from error
    found = (*tokens, *filter(None, map(str.strip, lines)))
    if path and not found:
        raise SettingsError(f"{path}: expected a token in each line, found none")
    for token in found:
        if not _TOKEN.fullmatch(token):  # what both a header and a browser's WebSocket can carry
            raise SettingsError("a token must have letters, digits and . _ ~ + - alone")
    return found


def _check_address(host: str, port: int, tokens: tuple[str, ...]) -> None:
    """Raises: SettingsError on a port that there is not, or an open server without a token."""
    if not 0 <= port < 65_536:
        raise SettingsError(f"--port must be from 0 to 65535, got {port}")
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        raise SettingsError(f"--host must be an IP address or localhost, got {host!r}") from error
    if not is_local and not tokens:
        raise SettingsError(f"--host {host} lets others in: set --token or --token-file")


def _check_tls(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Raises: SettingsError unless both files are named or neither, OSError without them."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise SettingsError("TLS needs both --tls-cert and --tls-key")
    for path in (cert, key):
        path.open("rb").close()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, "")
    except ssl.SSLError as error:
        expected = "expected a certificate and its key, PEM without a password"
        raise SettingsError(f"{cert} and {key}: {expected} ({error.reason})") from error
    return cert, key


def _listen(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound, and takes no connection yet. Raises: OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        hint = "; --port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
        raise OSError(error.errno, f"{error.strerror}{hint}", f"{host}:{port}") from error
    return listener


def _tell(lines: TextIO, url: str, environments: Sequence[str]) -> None:
    print(json.dumps({"url": url, "environments": list(environments)}), file=lines, flush=True)


if __name__ == "__main__":
    sys.exit(main())
