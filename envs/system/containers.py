"""The only module that imports docker: daemon, images, and containers left by ended processes."""

from collections.abc import Iterator
from contextlib import suppress

import docker
from docker.errors import APIError, BuildError, DockerException, ImageNotFound
from docker.models.containers import Container
from requests.exceptions import RequestException

from agentpeft.envs.core.errors import EnvFault, SettingsError
from agentpeft.envs.system.processes import is_alive

__all__ = ["Container"]

DOCKER_ERRORS = (DockerException, RequestException)
"""Errors of a docker daemon: its answers, a lost connection, silence for a minute."""


def connect() -> docker.DockerClient:
    """Returns a client of a daemon that answers. Raises: EnvFault with what to start."""
    try:
        client = docker.from_env()
        if client.api.base_url.startswith("http+docker"):  # a socket of this machine
            # Each request would look for proxies, and fail where a thread sets a variable meanwhile
            client.api.trust_env = False
        client.ping()
    except DOCKER_ERRORS as error:
        raise EnvFault(
            f"no docker daemon answers ({one_line(error)}): start one (systemctl start docker, or "
            "dockerd as root), or set DOCKER_HOST"
        ) from None
    return client


def need_image(client: docker.DockerClient, image: str) -> str:
    """Returns an image's id, pulling it at need. Raises: SettingsError."""
    with suppress(ImageNotFound):
        return str(client.images.get(image).id)
    try:
        return str(client.images.pull(*_split_tag(image)).id)
    except (APIError, ValueError) as error:
        raise SettingsError(
            f"the image {image!r} is not there and cannot be pulled ({one_line(error)}): "
            f"docker pull {image}, or name another one as docker://image"
        ) from None


def need_default_image(client: docker.DockerClient, image: str, folder: str) -> None:
    """Builds an image from a folder's Dockerfile, unless it is there. Raises: SettingsError."""
    with suppress(ImageNotFound):
        client.images.get(image)
        return
    try:
        client.images.build(path=folder, tag=image, rm=True)
    except (APIError, BuildError) as error:
        raise SettingsError(
            f"the image {image!r} is not there and cannot be built ({one_line(error)}): docker "
            f"build -t {image} {folder}, or {folder}/make_root.sh FILE.tar && docker import "
            f"FILE.tar {image}"
        ) from None


def export_image(image: str) -> tuple[str, Iterator[bytes]]:
    """Returns an image's id, and its files as a tar. Raises: EnvFault, SettingsError."""
    client = connect()
    return need_image(client, image), _export(client, image)


def _export(client: docker.DockerClient, image: str) -> Iterator[bytes]:
    container = client.containers.create(image, command=["true"])
    try:
        yield from container.export()
    finally:
        container.remove(force=True, v=True)


def remove_leftovers(client: docker.DockerClient, label: str) -> None:
    """Removes the containers of processes of this machine that have ended.

    The label's value must be what `identify_process` says of the owner.
    """
    for container in client.containers.list(all=True, filters={"label": label}, sparse=True):
        if not is_alive(container.attrs["Labels"][label]):
            with suppress(*DOCKER_ERRORS):  # another process was quicker
                container.remove(force=True, v=True)


def one_line(error: Exception) -> str:
    """Returns the beginning of an error's message on one line."""
    return " ".join(str(error).split())[:300]


def _split_tag(image: str) -> tuple[str, str]:
    name, separator, tag = image.rpartition(":")
    return (name, tag) if separator and "/" not in tag else (image, "latest")
