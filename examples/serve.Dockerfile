# Environments as a service, without torch or Ray:
#
#   docker build --file examples/serve.Dockerfile --tag agentpeft-serve .
#   docker run --publish 8000:8000 --env AGENTPEFT_TOKEN agentpeft-serve
#   docker run --publish 8000:8000 --env AGENTPEFT_TOKEN agentpeft-serve AgentPEFT/DBBench-v0
#
# Bubblewrap's sandboxes, for OS-interaction, need user namespaces, which docker's default seccomp
# profile denies. A server without a token does not listen to others: set AGENTPEFT_TOKEN.
FROM python:3.11-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap uidmap \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/agentpeft
COPY pyproject.toml README.md LICENSE ./
COPY agentpeft agentpeft
COPY envs envs
COPY policies policies
COPY launch launch
RUN pip install --no-cache-dir '.[serve,db,os]'

EXPOSE 8000
ENTRYPOINT ["agentpeft", "serve", "--host", "0.0.0.0"]
