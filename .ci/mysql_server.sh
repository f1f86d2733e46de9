#!/bin/sh
# A private MariaDB server for tests and benchmarks.
#
#   mysql_server.sh start [NAME]   starts it (or finds it running) and prints its URL
#   mysql_server.sh stop  [NAME]   stops it and removes its data
#
# NAME tells servers apart; with a slash in it, it is the folder to use (its parents must be open
# to the user mysql).
#
# Its data lie in memory where /dev/shm is there, flushes are relaxed (nothing is worth a crash
# recovery), and it listens on loopback and on a socket only. Installs Debian's mariadb-server
# if there is none. Only the URL goes to standard output.
set -eu

command=${1:-start}
[ -d /dev/shm ] && [ -w /dev/shm ] && base=/dev/shm || base=${TMPDIR:-/tmp}
case ${2:-} in
*/*) folder=$2 ;;
*) folder=$base/agentpeft-mysql-$(id -u)-${2:-shared} ;;
esac

is_running() {
    [ -s "$folder/pid" ] && kill -0 "$(cat "$folder/pid")" 2>/dev/null &&
        ! grep -q '^State:[[:space:]]*Z' "/proc/$(cat "$folder/pid")/status" 2>/dev/null
}

install_server() {
    command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] && return
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    apt-get install -y -qq --no-install-recommends mariadb-server >&2
}

start_server() {
    rm -rf "$folder"
    mkdir -p "$folder/files"
    chmod 755 "$folder"
    user=$(id -un)
    [ "$user" = root ] && user=mysql && chown mysql "$folder"
    mariadb-install-db --no-defaults --user="$user" --datadir="$folder/data" \
        --auth-root-authentication-method=normal --skip-test-db >"$folder/install.log" 2>&1
    password=$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    cat >"$folder/init.sql" <<SQL
DELETE FROM mysql.global_priv WHERE User IN ('root', '') AND Host <> 'localhost';
FLUSH PRIVILEGES;
ALTER USER root@localhost IDENTIFIED BY '$password';
CREATE USER root@127.0.0.1 IDENTIFIED BY '$password';
GRANT ALL ON *.* TO root@127.0.0.1 WITH GRANT OPTION;
SQL
    chmod 644 "$folder/init.sql"
    # Stays alive when the calling shell ends; stdout must be closed or $(...) would wait for it.
    setsid mariadbd --no-defaults --user="$user" --datadir="$folder/data" \
        --socket="$folder/sock" --pid-file="$folder/pid" --init-file="$folder/init.sql" \
        --bind-address=127.0.0.1 --port="$port" --skip-name-resolve --skip-log-bin \
        --innodb-flush-log-at-trx-commit=0 --innodb-flush-method=nosync --sync-frm=0 \
        --innodb-doublewrite=0 --innodb-buffer-pool-size=128M --innodb-log-file-size=64M \
        --performance-schema=OFF --max-connections=500 --table-open-cache=2000 \
        --secure-file-priv="$folder/files" --local-infile=0 --skip-symbolic-links --enforce-storage-engine=InnoDB \
        >"$folder/server.log" 2>&1 </dev/null &
    for _ in $(seq 150); do
        if is_running && mariadb-admin --no-defaults --socket="$folder/sock" -uroot \
            -p"$password" ping >/dev/null 2>&1; then
            rm -f "$folder/init.sql"
            (umask 077 && echo "mysql://root:$password@127.0.0.1:$port" >"$folder/url")
            return
        fi
        sleep 0.2
    done
    echo "MariaDB did not start:" >&2
    tail -n 20 "$folder/install.log" "$folder/server.log" >&2
    exit 1
}

stop_server() {
    if is_running; then
        pid=$(cat "$folder/pid")
        kill "$pid"
        for _ in $(seq 50); do is_running || break; sleep 0.1; done
        # A thread that is deep in one expression hears of no shutdown; there are no data to save.
        while is_running; do kill -9 "$pid" 2>/dev/null || true; sleep 0.1; done
    fi
    rm -rf "$folder"
}

PATH=$PATH:/usr/sbin:/sbin
case $command in
start)
    install_server
    is_running && [ -s "$folder/url" ] || start_server
    cat "$folder/url"
    ;;
stop) stop_server ;;
*)
    echo "usage: $0 start|stop [NAME], got '$command'" >&2
    exit 2
    ;;
esac
