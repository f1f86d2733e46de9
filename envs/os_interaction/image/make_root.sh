#!/bin/sh
# Makes the image without docker: Debian by debootstrap, with packages.txt, as a tar.
#
#   make_root.sh FILE.tar [PACKAGE...]     needs root and debootstrap
#
# Bookworm from DEBIAN_MIRROR, or this machine's own release from the mirror that apt uses here.
#
# The bubblewrap sandbox takes the file as it is; docker after `docker import FILE.tar NAME`.
set -eu

[ $# -gt 0 ] || { echo "usage: $0 FILE.tar [PACKAGE...]" >&2; exit 2; }
file=$1
shift
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || { echo "$0: debootstrap needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || {
    echo "$0: no debootstrap (Debian: apt-get install debootstrap)" >&2
    exit 1
}
. /etc/os-release
if [ -n "${DEBIAN_MIRROR:-}" ]; then
    mirror=$DEBIAN_MIRROR codename=bookworm components=main
else
    mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME) $(COMPONENT)' 2>/dev/null |
        awk -v codename="$VERSION_CODENAME" '$2 == codename && $3 == "main" {print $1; exit}')
    codename=$VERSION_CODENAME components=main
    [ "$ID" = ubuntu ] && components=main,universe
fi
names=$(cat "$(dirname "$0")/packages.txt")
packages=$(echo $names "$@" | tr ' ' ',')
root=$(mktemp -d)
trap 'rm -rf "$root" "$file.part"' EXIT
chmod 755 "$root"
debootstrap --variant=minbase --components="$components" --include="$packages" \
    "$codename" "$root" "$mirror" >&2
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc \
    "$root"/usr/share/locale "$root"/usr/share/vim/vim*/doc "$root"/usr/share/vim/vim*/lang \
    "$root"/usr/share/vim/vim*/spell "$root"/usr/share/vim/vim*/tutor \
    "$root"/etc/apt/sources.list "$root"/dev/* "$root"/var/log/*.log
tar --numeric-owner --sort=name -C "$root" -cf "$file.part" .
mv "$file.part" "$file"
