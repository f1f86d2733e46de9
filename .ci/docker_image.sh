#!/bin/sh
# A docker image that behaves as the official mysql and mariadb images do, made without pulling.
#
#   docker_image.sh start   starts dockerd if none answers, makes the image if there is none, and
#                           prints its name
#   docker_image.sh stop    stops the dockerd that this script has started
#
# Debian by debootstrap (from the mirror that apt uses here), its MariaDB, and an entrypoint that
# honours MYSQL_ROOT_PASSWORD, MYSQL_RANDOM_ROOT_PASSWORD, MYSQL_ALLOW_EMPTY_PASSWORD,
# MYSQL_ROOT_HOST, MYSQL_DATABASE, MYSQL_USER and MYSQL_PASSWORD (and their MARIADB_ names).
# Needs root. Installs Debian's docker.io and debootstrap. Only the name goes to standard output.
set -eu

command=${1:-start}
image=agentpeft/mariadb:test
state=${TMPDIR:-/tmp}/agentpeft-dockerd
PATH=$PATH:/usr/sbin:/sbin
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")

install_packages() {
    missing=
    command -v dockerd >/dev/null || missing="$missing docker.io"
    command -v debootstrap >/dev/null || missing="$missing debootstrap"
    [ -z "$missing" ] && return
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing iptables ca-certificates >&2
}

start_daemon() {
    docker info >/dev/null 2>&1 && return
    mkdir -p "$state"
    for options in "" "--iptables=false --ip6tables=false" \
        "--iptables=false --ip6tables=false --storage-driver=vfs"; do
        # shellcheck disable=SC2086
        setsid dockerd $options >"$state/log" 2>&1 </dev/null &
        echo $! >"$state/pid"
        for _ in $(seq 60); do
            docker info >/dev/null 2>&1 && return
            kill -0 "$(cat "$state/pid")" 2>/dev/null || break
            sleep 0.5
        done
        kill "$(cat "$state/pid")" 2>/dev/null || true
    done
    echo "dockerd did not start:" >&2
    tail -n 20 "$state/log" >&2
    exit 1
}

apt_mirror() {
    apt-get indextargets --format '$(SITE) $(CODENAME) $(COMPONENT)' 2>/dev/null |
        awk -v codename="$codename" '$2 == codename && $3 == "main" {print $1; exit}'
}

make_image() {
    docker image inspect "$image" >/dev/null 2>&1 && return
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    chmod 755 "$root"
    debootstrap --variant=minbase --include=mariadb-server "$codename" "$root" "$(apt_mirror)" >&2
    rm -rf "$root"/var/lib/mysql/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* \
        "$root"/usr/share/doc "$root"/usr/share/locale "$root"/etc/apt/sources.list
    write_entrypoint >"$root/entrypoint.sh"
    chmod 755 "$root/entrypoint.sh"
    tar -C "$root" -c . | docker import --change 'ENTRYPOINT ["/entrypoint.sh"]' \
        --change 'CMD ["mariadbd"]' --change 'EXPOSE 3306' --change 'VOLUME /var/lib/mysql' \
        - "$image" >&2
}

write_entrypoint() {
    cat <<'ENTRYPOINT'
#!/bin/bash
set -eu
root_password=${MYSQL_ROOT_PASSWORD:-${MARIADB_ROOT_PASSWORD:-}}
random=${MYSQL_RANDOM_ROOT_PASSWORD:-${MARIADB_RANDOM_ROOT_PASSWORD:-}}
allow_empty=${MYSQL_ALLOW_EMPTY_PASSWORD:-${MARIADB_ALLOW_EMPTY_ROOT_PASSWORD:-}}
root_host=${MYSQL_ROOT_HOST:-${MARIADB_ROOT_HOST:-%}}
database=${MYSQL_DATABASE:-${MARIADB_DATABASE:-}}
user=${MYSQL_USER:-${MARIADB_USER:-}}
password=${MYSQL_PASSWORD:-${MARIADB_PASSWORD:-}}
if [ -z "$root_password$random$allow_empty" ]; then
    echo "[ERROR] Database is uninitialized and password option is not specified: one of" \
        "MYSQL_ROOT_PASSWORD, MYSQL_ALLOW_EMPTY_PASSWORD, MYSQL_RANDOM_ROOT_PASSWORD" >&2
    exit 1
fi
[ "${1:-}" = mysqld ] && set -- mariadbd "${@:2}"
case ${1:-} in -*) set -- mariadbd "$@" ;; esac
if [ "${1:-}" = mariadbd ] && [ ! -d /var/lib/mysql/mysql ]; then
    if [ -n "$random" ]; then
        root_password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
        echo "GENERATED ROOT PASSWORD: $root_password"
    fi
    mkdir -p /run/mysqld /var/lib/mysql
    chown -R mysql:mysql /run/mysqld /var/lib/mysql
    mariadb-install-db --user=mysql --datadir=/var/lib/mysql --skip-test-db \
        --auth-root-authentication-method=normal >/dev/null
    {
        echo "DELETE FROM mysql.global_priv WHERE User IN ('root', '') AND Host <> 'localhost';"
        echo "FLUSH PRIVILEGES;"
        echo "ALTER USER root@localhost IDENTIFIED BY '${root_password//\'/\'\'}';"
        if [ "$root_host" != localhost ]; then
            echo "CREATE USER root@'$root_host' IDENTIFIED BY '${root_password//\'/\'\'}';"
            echo "GRANT ALL ON *.* TO root@'$root_host' WITH GRANT OPTION;"
        fi
        [ -n "$database" ] && echo "CREATE DATABASE IF NOT EXISTS \`$database\`;"
        if [ -n "$user" ]; then
            echo "CREATE USER \`$user\`@'%' IDENTIFIED BY '${password//\'/\'\'}';"
            [ -n "$database" ] && echo "GRANT ALL ON \`$database\`.* TO \`$user\`@'%';"
        fi
        true
    } >/var/lib/mysql/init.sql
    # As the official images do: a first server without network sets up, a second one serves.
    mariadbd --user=mysql --skip-networking --socket=/run/mysqld/init.sock \
        --pid-file=/run/mysqld/init.pid --init-file=/var/lib/mysql/init.sql &
    until mariadb-admin --socket=/run/mysqld/init.sock -uroot -p"$root_password" ping \
        >/dev/null 2>&1; do
        kill -0 $! || exit 1
        sleep 0.2
    done
    mariadb-admin --socket=/run/mysqld/init.sock -uroot -p"$root_password" shutdown
    wait $!
    rm /var/lib/mysql/init.sql
fi
if [ "${1:-}" = mariadbd ]; then
    mkdir -p /run/mysqld && chown mysql:mysql /run/mysqld
    set -- mariadbd --user=mysql --bind-address=0.0.0.0 --skip-name-resolve "${@:2}"
fi
exec "$@"
ENTRYPOINT
}

stop_daemon() {
    [ -s "$state/pid" ] || return 0
    kill "$(cat "$state/pid")" 2>/dev/null || true
    rm -rf "$state"
}

case $command in
start)
    install_packages
    start_daemon
    make_image
    echo "$image"
    ;;
stop) stop_daemon ;;
*)
    echo "usage: $0 start|stop, got '$command'" >&2
    exit 2
    ;;
esac
