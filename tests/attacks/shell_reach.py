"""Commands that reach for the host, its kernel, its network and other episodes.

Nothing here could harm the host if a sandbox were broken: what writes writes back what is there, or
a file of the attacks' own; sockets are those of the loopback.
"""

from attack import Topic, Try

FILES = Topic(
    "shell",
    "host files and devices",
    "the host's files by paths, links, /proc, devices and sockets",
    {
        "bubblewrap": "a mount namespace of an overlay; device files of a tmpfs without any",
        "docker": "the container's root; the device cgroup; docker's masked paths",
    },
)
NAMESPACES = Topic(
    "shell",
    "mounts, namespaces and rights",
    "mounting, new namespaces, capabilities, setuid programs, settings of the machine",
    {
        "bubblewrap": "a user namespace further in, where none can be made; twelve capabilities; "
        "no new privileges",
        "docker": "twelve capabilities, no new privileges, docker's seccomp profile",
    },
)
CALLS = Topic(
    "shell",
    "system calls",
    "calls that reach past namespaces: bpf, keyrings, io_uring, userfaultfd, perf, handles, modules",
    {
        "bubblewrap": "a seccomp filter; no capability for the rest",
        "docker": "docker's seccomp profile and the same filter",
    },
)
NETWORK = Topic(
    "shell",
    "network",
    "the host's ports, abstract sockets, raw packets, netlink, vsock, names",
    {
        "bubblewrap": "a network namespace with loopback only; socket families by the filter",
        "docker": "runc's own network namespace with loopback only; the same filter",
    },
)
OTHERS = Topic(
    "shell",
    "processes",
    "signals, tracing and memory of the host's processes and of the sandbox's own",
    {
        "bubblewrap": "a process namespace; the helper is outside of it",
        "docker": "a process namespace; process 1 is not dumpable and takes no signals",
    },
)
_DEVICES = ("sda", "vda", "nvme0n1", "mem", "kmem", "port", "kmsg", "kvm", "fuse", "loop-control",
            "net/tun", "vhost-vsock", "rtc0", "watchdog", "uinput")  # fmt: skip
_PROC = ("kcore", "kallsyms", "kmsg", "sysrq-trigger", "timer_list", "sched_debug", "keys", "acpi",
         "latency_stats", "scsi/scsi", "bus/pci/devices", "1/environ", "1/mem", "1/cwd/etc/shadow",
         "1/cwd", "1/map_files")  # fmt: skip
_SETTINGS = (
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/hostname",
    "kernel/randomize_va_space",
    "kernel/ns_last_pid",
    "kernel/sysrq",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "fs/binfmt_misc/register",
    "net/ipv4/ip_forward",
)
_MOUNTS = {
    "a memory": "mount -t tmpfs none /mnt",
    "a process table": "mount -t proc none /mnt",
    "a system's table": "mount -t sysfs none /mnt",
    "control groups": "mount -t cgroup -o memory none /mnt",
    "control groups of version 2": "mount -t cgroup2 none /mnt",
    "a device": "mknod /tmp/@mark@ b 254 0; mount /tmp/@mark@ /mnt",
    "an overlay": "mount -t overlay -o lowerdir=/etc,upperdir=/tmp,workdir=/srv none /mnt",
    "a bind": "mount --bind /etc /mnt",
    "a move": "mount --move /proc /mnt",
    "a remount": "mount -o remount,rw /proc/sys",
    "shared propagation": "mount --make-rshared /",
    "an unmount": "umount -l /proc",
    "a debugger's": "mount -t debugfs none /mnt",
    "a tracer's": "mount -t tracefs none /mnt",
    "a security's": "mount -t securityfs none /mnt",
    "a bpf's": "mount -t bpf none /mnt",
    "a fuse's": "mount -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 x /mnt",
    "a binary format's": "mount -t binfmt_misc none /mnt",
    "a loop's": "truncate -s 9M /tmp/x; losetup /dev/loop0 /tmp/x",
}
_UNSHARES = {"mounts": "-m", "users": "-Ur", "network": "-n", "hostname": "-u", "messages": "-i",
             "control groups": "-C", "processes": "-pf", "time": "-T", "all": "-UrmniupCf"}  # fmt: skip
_MACHINE = {
    "a hostname": "hostname @mark@",
    "a domain": "domainname @mark@",
    "a clock": "date -s 2001-01-01",
    "a swap": "swapoff -a; swapon /srv/none",
    "a kernel log": "dmesg --clear",
    "a module": "insmod /srv/x.ko; modprobe dummy",
    "a chroot": "chroot / mount -t proc none /mnt",
    "a namespace of the first": "nsenter -t 1 -m -p -n true",
    "a namespace by a descriptor": "exec 7</proc/1/ns/mnt && nsenter --mount=/proc/self/fd/7 true",
    "a network device": "ip link add dummy0 type dummy",
    "a disk's device": "mknod /srv/disk b 254 0",
    "a memory's device": "mknod /srv/mem c 1 1",
}
_CALLS = {
    "kexec_load": "246, 0, 0, None, 0",
    "init_module": "175, None, 0, b''",
    "delete_module": "176, b'dummy', 0",
    "reboot of nothing": "169, 0, 0, 0, None",
    "bpf": "321, 0, None, 0",
    "perf_event_open": "298, None, 0, -1, -1, 0",
    "userfaultfd": "323, 0",
    "io_uring_setup": "425, 8, None",
    "io_uring_enter": "426, 0, 0, 0, 0, None",
    "io_uring_register": "427, 0, 0, None, 0",
    "keyctl": "250, 0, -4, 1",
    "add_key": "248, b'user', b'x', b'y', 1, -3",
    "request_key": "249, b'user', b'x', None, -3",
    "open_by_handle_at": "304, -100, None, 0",
    "pivot_root": "155, b'/', b'/mnt'",
    "mount": "165, b'none', b'/mnt', b'tmpfs', 0, None",
    "umount": "166, b'/proc', 2",
    "move_mount": "429, -100, b'/proc', -100, b'/mnt', 0",
    "fsopen": "430, b'tmpfs', 0",
    "open_tree": "428, -100, b'/', 1",
    "mount_setattr": "442, -100, b'/', 0, None, 0",
    "unshare of users": "272, 0x10000000",
    "unshare of mounts": "272, 0x20000",
    "setns": "308, 0, 0",
    "clone of users": "56, 0x10000000 | 17, None, None, None, 0",
    "ptrace of the first": "101, 16, 1, None, None",
    "process_vm_readv of the first": "310, 1, None, 0, None, 0, 0",
    "kcmp of the first": "312, 1, os.getpid(), 1, 0, 0",
    "acct": "163, b'/tmp/x'",
    "swapon": "167, b'/srv/x', 0",
    "iopl": "172, 3",
    "ioperm": "173, 0x80, 1, 1",
    "settimeofday": "164, None, None",
    "sethostname": "170, b'@mark@', 5",
    "syslog": "103, 5, None, 0",
    "quotactl": "179, 0, None, 0, None",
    "lookup_dcookie": "212, 0, None, 0",
    "modify_ldt": "154, 0, None, 0",
    "fanotify of a mount": "301, 0, 0, 0, 0, b'/'",
    "pidfd of the host's": "434, @victim@, 0",
    "a call of the x32 table": "0x40000000 + 101, 0, 0, 0, 0",
    "a call that is none": "9999, 0, 0, 0",
    "personality": "135, 0x0040000",
}
_SOCKETS = {
    "vsock": "40, 1, 0",
    "packet": "17, 3, 768",
    "raw": "2, 3, 1",
    "raw of version 6": "10, 3, 58",
    "algorithms": "38, 5, 0",
    "bluetooth": "31, 3, 1",
    "express data": "44, 3, 0",
    "routes": "16, 3, 0",
    "netfilter": "16, 3, 12",
    "audit": "16, 3, 9",
    "events": "16, 3, 15",
    "canbus": "29, 3, 1",
    "reliable datagrams": "21, 5, 0",
    "tipc": "30, 1, 0",
    "keys": "15, 3, 2",
    "protected": "43, 1, 0",
}


def _python(code: str) -> str:
    return f"python3 - <<'E'\n{code}\nE"


def _call(arguments: str) -> str:
    return _python(
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"result = libc.syscall({arguments})\n"
        "if result == 0 and os.getppid() != 0: pass\n"
        "os._exit(3) if result < 0 else os._exit(0)"
    )


def _call_is_harmless(name: str) -> bool:
    return name in {"personality", "a call of the x32 table", "modify_ldt", "kcmp of the first",
                    "process_vm_readv of the first",
        "ptrace of the first", "clone of users"}  # fmt: skip


def _connect(host: str) -> str:
    return _python(f"import socket\nsocket.create_connection(({host!r}, @port@), 0.5)")


ATTACKS = [
    *FILES.entries({f"the device {name}": f"head -c 16 /dev/{name} | od" for name in _DEVICES}),
    *FILES.entries(
        {f"the process table's {name}": f"head -c 99 /proc/{name} | od" for name in _PROC}
    ),
    *FILES.entries(
        {
            "the secret by its path": Try("cat @secret@", is_refused=True),
            "the secret by the first's root": Try("cat /proc/1/root@secret@", is_refused=True),
            "the secret by its own root": Try("cat /proc/self/root@secret@", is_refused=True),
            "the secret by dots": Try("cat /../../../../../../..@secret@", is_refused=True),
            "the secret by a folder": "for p in /proc/[0-9]*/cwd /proc/[0-9]*/root; do cat $p@secret@; done",
            "the secret by descriptors": "for f in /proc/[0-9]*/fd/*; do ls -l $f; timeout 0.1 head -c 99 "
            "$f/..@secret@; done 2>/dev/null | grep sesame",
            "the secret by a link": "rm /srv/answer; ln -s @secret@ /srv/answer",
            "the secret by a hard link": "ln @secret@ /srv/x",
            "the secret by a link of a folder": "ln -s /proc/1/root /srv/r; rm /srv/answer; ln -s "
            "/srv/r@secret@ /srv/answer",
            "the secret overwritten": "echo open >@secret@; echo open >/proc/1/root@secret@",
            "the secret overwritten by a link": "ln -sf @secret@ /tmp/x; echo open >/tmp/x; tee /tmp/x <x",
            "the secret by an open folder": _python(
                "import os\nfor n in range(3, 64):\n    try:\n        f = os.open('..@secret@', 0, dir_fd=n)\n"
                "        os.write(1, os.read(f, 99))\n    except OSError: pass"
            ),
            "the secret by a chroot that is left": _python(
                "import os\nos.mkdir('/tmp/c')\nf = os.open('/', 0)\nos.chroot('/tmp/c')\nos.fchdir(f)\n"
                "for _ in range(64): os.chdir('..')\nos.chroot('.')\nprint(open('@secret@').read())"
            ),
            "a race of links": "(while :; do ln -sfn / /srv/r; ln -sfn /proc/1/root /srv/r; done) & "
            "for i in {1..100}; do cat /srv/r@secret@; done 2>/dev/null",
            "a folder that is swapped while read": "rm -f /srv/answer; (while :; do mkdir /srv/answer; "
            "rmdir /srv/answer; ln -s / /srv/answer; rm /srv/answer; done) 2>/dev/null & sleep 0.3",
            "docker's socket": "ls /var/run/docker.sock /run/docker.sock; curl --unix-socket "
            "/run/docker.sock http://x/info",
            "containerd's socket": "ls /run/containerd/containerd.sock /run/crio /run/podman",
            "the mounts of the host": "cat /proc/self/mountinfo /proc/1/mountinfo | grep -c secret",
            "the overlay's folders": "d=$(grep -o 'upperdir=[^,]*' /proc/mounts | head -1 | cut -d= -f2); ls $d; "
            "touch $d/@mark@",
            "the overlay's layers": "for d in $(grep -o 'lowerdir=[^,]*' /proc/mounts | tr '=:' '\\n'); do "
            "touch $d/@mark@; done",
            "files of the host's folders": "touch /tmp/@mark@ /dev/shm/@mark@ /var/tmp/@mark@ /@mark@",
            "the runtime overwritten": _python(
                "import os, time\nfor n in range(50):\n    try:\n        open('/proc/1/exe', 'wb').close()\n"
                "    except OSError: time.sleep(0.001)"
            ),
            "the runtime by its own link": "cp /proc/1/exe /tmp/exe; ln -sf /proc/self/exe /tmp/e; "
            "cat /bin/true >/tmp/e",
            "the environment's tokens": "cat /proc/[0-9]*/environ /run/secrets/* /var/run/secrets/*/* | tail -c 1",
            "the cloud's metadata": "curl -m 0.5 http://169.254.169.254/; wget -T 1 http://169.254.169.254/",
            "a core file": "ulimit -c unlimited; sh -c 'kill -SEGV $$'; ls /core*",
            "a core of a pattern": "echo '|/bin/touch /tmp/@mark@' >/proc/sys/kernel/core_pattern; "
            "sh -c 'kill -SEGV $$'",
            "a helper of hot plugs": "echo /tmp/x >/sys/kernel/uevent_helper; echo /tmp/x >"
            "/proc/sys/kernel/hotplug",
            "a release agent": "for f in $(find /sys/fs/cgroup -name release_agent); do cat $f >$f; done; "
            "echo 1 >/sys/fs/cgroup/notify_on_release",
            "a firmware": "ls /sys/firmware/efi/efivars /sys/class/dmi/id/product_uuid",
            "attributes of files": "setfattr -n trusted.overlay.opaque -v y /srv; setfattr -n "
            "trusted.overlay.redirect -v /etc /srv; getfattr -d -m - /srv",
            "a white-out by hand": "mknod /srv/w c 0 0; rm -f /srv/answer; mknod /srv/answer c 0 0",
        }
    ),
    *NAMESPACES.entries({f"mounting {n}": Try(c, is_refused=True) for n, c in _MOUNTS.items()}),
    *NAMESPACES.entries(
        {
            f"unsharing {name}": Try(f"unshare {option} true", is_refused=True)
            for name, option in _UNSHARES.items()
        }
    ),
    *NAMESPACES.entries({f"setting {n}": Try(c, is_refused=True) for n, c in _MACHINE.items()}),
    *NAMESPACES.entries(
        {
            f"writing {name}": Try(
                f'x=$(cat /proc/sys/{name}); echo "$x" >/proc/sys/{name}', is_refused=True
            )
            for name in _SETTINGS
        }
    ),
    *NAMESPACES.entries(
        {
            "a setuid shell": "cp /bin/bash /tmp/s; chmod 6755 /tmp/s; useradd ann; su ann -c '/tmp/s -p -c id'",
            "a shell with capabilities": "cp /bin/bash /tmp/s; setcap all+ep /tmp/s; /tmp/s -c 'mount -t tmpfs "
            "none /mnt'",
            "capabilities inherited": "capsh --addamb=cap_sys_admin -- -c 'mount -t tmpfs none /mnt'; "
            "grep Cap /proc/self/status | wc -l",
            "ids of the host": "chown 99999 /srv; chown 2000000000 /srv; "
            + _python("import os; os.setuid(1879048192)"),
            "a map of ids": "echo '0 0 4294967295' >/proc/self/uid_map; echo '0 0 1' >/proc/1/uid_map; "
            "echo deny >/proc/self/setgroups",
            "a newuidmap": "newuidmap $$ 0 0 1; newgidmap $$ 0 0 1",
            "sudo and doas": "sudo -n id; doas id; pkexec id; su - -c id",
            "a new login": "login -f root; runuser -u root -- mount -t tmpfs none /mnt",
        }
    ),
    *CALLS.entries(
        {
            name: Try(_call(arguments), is_refused=not _call_is_harmless(name))
            for name, arguments in _CALLS.items()
        }
    ),
    *NETWORK.entries(
        {
            f"a socket of {name}": _python(f"import socket\nsocket.socket({a})")
            for name, a in _SOCKETS.items()
        }
    ),
    *NETWORK.entries(
        {
            "the host's loopback": Try(_connect("127.0.0.1"), is_refused=True),
            "the host's address": Try(_connect("@address@"), is_refused=True),
            "docker's bridge": Try(_connect("172.17.0.1"), is_refused=True),
            "all addresses": Try(_connect("0.0.0.0"), is_refused=True),
            "version 6": Try(_connect("::1"), is_refused=True),
            "a mapped address": Try(_connect("::ffff:127.0.0.1"), is_refused=True),
            "an abstract socket": Try(
                _python("import socket\nsocket.socket(1).connect('\\0@abstract@')"), is_refused=True
            ),
            "abstract sockets listed": "cat /proc/net/unix | grep -c @abstract@",
            "a bash connection": Try("exec 9<>/dev/tcp/@address@/@port@", is_refused=True),
            "a bash datagram": "echo x >/dev/udp/@address@/@port@",
            "names": "getent hosts example.invalid; cat /etc/resolv.conf | wc -l",
            "a web page": "curl -m 0.5 http://@address@:@port@/; wget -T 1 -t 1 http://@address@:@port@/",
            "a server for the host": "python3 -m http.server 18080 --bind 0.0.0.0 & sleep 0.3",
            "an interface brought up": "ip link set lo down; ip addr add 10.0.0.1/8 dev lo; ip route add "
            "default dev lo; ifconfig lo 10.0.0.2",
            "a firewall": "iptables -F; nft flush ruleset",
            "echo requests": "ping -c 1 -W 1 127.0.0.1; ping -c 1 -W 1 @address@",
            "a privileged port": "timeout 0.2 python3 -m http.server 80",
            "a flood of datagrams": _python(
                "import socket\ns = socket.socket(2, 2)\nfor i in range(2000): s.sendto(bytes(60000), "
                "('127.0.0.1', 9))"
            ),
        }
    ),
    *OTHERS.entries(
        {
            "the host's process": "kill -9 @victim@; kill -STOP @victim@",
            "every process": "kill -9 -1",
            "every number": "for p in {2..2000}; do [ $p = $$ ] || kill -9 $p; done 2>/dev/null",
            "the first process": "kill -9 1; kill -TERM 1; kill -INT 1; kill -STOP 1; kill -SEGV 1",
            "the first process by every signal": "for s in {1..64}; do kill -$s 1; done 2>/dev/null",
            "the parent": "kill -9 $PPID; kill -9 0",
            "the group of the parent": "kill -9 -$PPID; pkill -9 -P 0; pkill -9 -P 1",
            "the first's memory": "dd if=/dev/zero of=/proc/1/mem bs=1 count=1 seek=4194304",
            "the first's descriptors": 'for i in 0 1 2 3 4 5 6; do echo \'{"id": 1, "value": {"output": '
            '"forged", "exit_code": 0}}\' >/proc/1/fd/$i; done',
            "the parent's descriptors": "for i in 0 1 2 3 4 5 6 7 8; do echo forged >/proc/$PPID/fd/$i; done",
            "descriptors that are inherited": 'for i in {3..40}; do echo \'{"id":1,"value":true}\' >&$i; '
            "done 2>/dev/null",
            "descriptors that are read": "for i in {3..40}; do timeout 0.02 head -c 9 <&$i; done 2>/dev/null",
            "descriptors of the parent taken": _python(
                "import ctypes, os\nlibc = ctypes.CDLL(None)\nfor p in (1, os.getppid()):\n"
                "    f = libc.syscall(434, p, 0)\n    for n in range(10):\n        print(libc.syscall(438, f, n, 0))"
            ),
            "a tracer of the first": "strace -p 1; gdb -p 1 -batch; gcore 1",
            "a tracer of the shell": _python(
                "import ctypes, os\nprint(ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0))"
            ),
            "memory of the parent": _python(
                "import os\nf = open(f'/proc/{os.getppid()}/mem', 'r+b', 0)\nf.seek(4194304)\nf.write(b'x')"
            ),
            "a subreaper": _python(
                "import ctypes, os, time\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
                "os.fork() or (os.setsid(), os.fork() or time.sleep(30))"
            ),
            "a process of the session": "setsid -c sh -c 'sleep 50 & exec true'",
            "a death signal": _python(
                "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0)\n"
                "os.fork() or time.sleep(50)"
            ),
            "a priority of all": "renice -n 19 -u root; renice -n 19 -p 1; ionice -c 3 -p 1",
            "a scheduler of the first": "chrt -o -p 0 1; taskset -p 1 1; prlimit --pid 1 --cpu=1:1",
            "a name of another": _python(
                "import ctypes, time\nctypes.CDLL(None).prctl(15, b'bwrap')\ntime.sleep(9)"
            ),
            "a checkpoint": "criu dump -t 1; kill -TRAP $$",
            "the oldest children": "for p in $(pgrep -P 1); do kill -9 $p; done",
            "others of the machine": "ps aux | grep -c -e pytest -e dockerd; ls /proc | wc -l",
            "others' shared memory": "ipcs -a | wc -l; ipcrm -a; ls /dev/mqueue",
            "others' temporary files": "find / -xdev -newer /etc/passwd -name '*sesame*' 2>/dev/null; grep -rl "
            "sesame /tmp /var/tmp /dev/shm /run 2>/dev/null",
        }
    ),
]
