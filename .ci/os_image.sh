#!/bin/sh
# The image of OS-interaction's sandboxes, made without a registry: prints the path of its tar.
#
# Debian by debootstrap, once for each version of its recipe (the tar is kept in /var/cache), and
# imported into docker where a daemon answers. Needs root. Installs bubblewrap, uidmap and
# debootstrap. Only the path goes to standard output.
set -eu

image=agentpeft/os-interaction
recipe=$(cd "$(dirname "$0")/../envs/os_interaction/image" && pwd)
cache=/var/cache/agentpeft/os_interaction
PATH=$PATH:/usr/sbin:/sbin

missing=
for name in bwrap:bubblewrap newuidmap:uidmap debootstrap:debootstrap; do
    command -v "${name%:*}" >/dev/null || missing="$missing ${name#*:}"
done
if [ -n "$missing" ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing >&2
fi

if [ -n "${CI:-}" ]; then  # so that tests can be an ordinary user too
    for file in /etc/subuid /etc/subgid; do
        grep -qs ^nobody: "$file" || echo nobody:200000:65536 >>"$file"
    done
fi
mkdir -p "$cache"
version=$(cat "$recipe/make_root.sh" "$recipe/packages.txt" | sha256sum | cut -c1-16)
tar=$cache/debian-$version.tar
[ -s "$tar" ] || "$recipe/make_root.sh" "$tar" >&2
if docker info >/dev/null 2>&1 &&
    [ "$(docker image inspect --format '{{.Comment}}' "$image" 2>/dev/null)" != "$version" ]; then
    docker import --message "$version" --change 'WORKDIR /root' "$tar" "$image" >&2
fi
echo "$tar"
