"""Commands that take time, memory, disk, processes and descriptors, as much as a limit allows.

What exhausts is bounded: were a limit broken, the host would lose 400 MiB or 200 processes for a
second.
"""

from attack import Topic, Try

TIME = Topic(
    "shell",
    "time",
    "commands that do not end, or do not want to",
    {
        "bubblewrap": "the shell's processes are killed after the command's time",
        "docker": "the same, by the container's process 1",
    },
)
MEMORY = Topic(
    "shell",
    "memory",
    "memory of one or many processes, of pipes, files in memory, sockets and the kernel",
    {
        "bubblewrap": "the memory cgroup of the sandbox, files included",
        "docker": "the container's memory cgroup",
    },
)
DISK = Topic(
    "shell",
    "disk and files",
    "large, sparse, many, deep and unlinked files; in every place that can be written",
    {
        "bubblewrap": "a tmpfs with a size and a number of inodes",
        "docker": "a watch of the container's layer; the largest file by an rlimit",
    },
)
PROCESSES = Topic(
    "shell",
    "processes and descriptors",
    "fork bombs, threads, zombies, descriptors, and what the kernel counts for each user",
    {
        "bubblewrap": "the pids cgroup, rlimits, a user id of the sandbox's own",
        "docker": "the container's pids cgroup and ulimits",
    },
)


def _python(code: str) -> str:
    return f"python3 - <<'E'\n{code}\nE"


def _limited(body: str, count: int = 200) -> str:
    """Returns Python that does `body` so often, and no oftener should no limit hold."""
    return _python(
        f"import os, socket, time\nkept = []\nfor i in range({count}):\n    {body}\ntime.sleep(0.1)"
    )


_RECLAIM_S = 4.0
"""The kernel counts in arrears what processes take in it to find memory, the sandbox's too."""
_EAT = "import time; x = bytearray(8 << 20); time.sleep(3)"

ATTACKS = [
    *TIME.entries(
        {
            "sleep": Try("sleep 99", is_refused=True),
            "a busy loop": Try("while :; do :; done", is_refused=True),
            "busy loops on all cores": Try(
                "for i in {1..9}; do while :; do :; done & done; wait", is_refused=True
            ),
            "a flood of output": Try("yes", is_refused=True),
            "a flood of errors": Try("yes >&2", is_refused=True),
            "a flood in the background": "yes & sleep 0.1",
            "a flood of one long line": Try("tr '\\0' x </dev/zero", is_refused=True),
            "a flood of bytes that are no text": Try("cat /dev/urandom", is_refused=True),
            "reading from nobody": "cat",
            "reading a pipe of nobody": Try("mkfifo /tmp/p; cat /tmp/p", is_refused=True),
            "writing to a pipe of nobody": Try("mkfifo /tmp/p; echo x >/tmp/p", is_refused=True),
            "waiting for oneself": Try("wait $$; tail --pid=$$ -f /dev/null", is_refused=True),
            "ignored signals": Try(
                "trap '' INT TERM HUP QUIT TSTP CHLD; while :; do sleep 0.1; done", is_refused=True
            ),
            "ignored signals in Python": Try(
                _python(
                    "import signal, time\nfor n in range(1, 32):\n    if n not in (9, 19):\n        "
                    "signal.signal(n, signal.SIG_IGN)\ntime.sleep(99)"
                ),
                is_refused=True,
            ),
            "a stopped shell": Try("kill -STOP $$", is_refused=True),
            "a stopped shell from behind": "(sleep 0.1; kill -STOP $$) & sleep 9",
            "a shell that stops itself for ever": "(while :; do kill -STOP $PPID $$; done) & sleep 9",
            "a debugged shell": _python(
                "import ctypes\nprint(ctypes.CDLL(None).ptrace(16, int(open('/proc/self/stat').read()"
                ".split()[3]), 0, 0))"
            ),
            "a new session": Try("setsid sleep 99; setsid -f sleep 99; sleep 9", is_refused=True),
            "daemons of daemons": "(setsid sh -c '(sleep 50 &) & (setsid sleep 50 &)' &) ; sleep 9",
            "an endless function": Try("f() { f; }; f", is_refused=True),
            "an endless alias": "alias x='x x'; x; eval 'while :; do :; done'",
            "an endless regular expression": _python(
                "import re; re.match('(a+)+$', 'a' * 99 + 'b')"
            ),
            "an endless sort": "yes | head -c 20000000 | sort -R >/dev/null",
            "an endless glob": "echo /*/*/*/*/*/* | tail -c 1",
            "an endless expansion": "x={1..9}; eval echo $x$x$x$x$x$x$x$x | tail -c 1",
            "an endless prime": "factor 1000000000000000000000000000057000000000000000000000000000000000021",
            "an endless search": "find / / / -name '*x*' -exec cat {} + | tail -c 1",
            "an endless read of a terminal": "read -r x </dev/tty; read -r x </dev/console",
            "an endless compile": "echo '#include __FILE__' >/tmp/x.c; timeout 9 gcc -c /tmp/x.c",
            "a compile of templates": "echo 'template<int n> struct A { A<n+1>* x; A<n+1> y; };"
            " A<0> a;' >/tmp/x.cc; g++ -ftemplate-depth=99999 -c /tmp/x.cc",
            "an editor": "vi /etc/passwd; ed; less /etc/passwd",
            "a clock set": "date -s 2001-01-01; hwclock -w; adjtimex --print",
            "low priority": "renice -n -20 $$; nice -n -20 true; chrt -f 99 true; ionice -c1 true",
            "a processor for itself": "taskset -p ff $$; chrt -r 99 sh -c 'while :; do :; done'",
        }
    ),
    *MEMORY.entries(
        {
            "one process": Try(_python("x = bytearray(400 << 20)"), is_refused=True),
            "a pipe's end": "head -c 400M /dev/zero | tail",
            "many processes": Try(
                f'for i in {{1..30}}; do python3 -c "{_EAT}" & done; sleep 0.8',
                cpu_slack_s=_RECLAIM_S,
            ),
            "a shell's variable": "x=$(head -c 300M /dev/zero | tr '\\0' x); echo ${#x}",
            "a shell's array": "x=({1..9999999}); echo ${#x[@]}",
            "an awk array": "awk 'BEGIN { for (i = 0; i < 9e7; i++) a[i] = i }'",
            "shared memory": "head -c 300M /dev/zero >/dev/shm/x; ls -l /dev/shm/x | wc -l",
            "shared memory of System V": _limited(
                "kept.append(__import__('ctypes').CDLL(None).shmget(0, 4 << 20, 0o1600))"
            ),
            "memory by a descriptor": _limited(
                "f = os.memfd_create('x'); kept.append(f); os.write(f, bytes(4 << 20))"
            ),
            "memory of an anonymous map": _limited(
                "m = __import__('mmap').mmap(-1, 4 << 20); m.write(bytes(4 << 20)); kept.append(m)"
            ),
            "memory that is locked": _limited(
                "m = __import__('ctypes').create_string_buffer(1 << 20); kept.append(m); "
                "__import__('ctypes').CDLL(None).mlock(m, 1 << 20)"
            ),
            "huge pages": _python(
                "import mmap\nm = mmap.mmap(-1, 1 << 30, flags=0x40022)\nm.write(bytes(1 << 20))"
            ),
            "pipes that are full": _limited(
                "r, w = os.pipe(); os.set_blocking(w, False); kept += [r, w]; "
                "os.write(w, bytes(65536))"
            ),
            "pipes that are larger": _limited(
                "r, w = os.pipe(); kept += [r, w]; __import__('fcntl').fcntl(w, 1031, 1 << 20); "
                "os.set_blocking(w, False); os.write(w, bytes(1 << 20))"
            ),
            "sockets that are full": _limited(
                "a, b = socket.socketpair(); a.setblocking(False); kept += [a, b]; a.send(bytes(200000))"
            ),
            "loopback that is full": _python(
                "import socket\ns = socket.create_server(('127.0.0.1', 0))\nkept = []\nfor i in range(50):\n"
                "    c = socket.create_connection(s.getsockname()); c.setblocking(False)\n"
                "    kept.append(c)\n    try:\n        while c.send(bytes(1 << 16)): pass\n"
                "    except OSError: pass"
            ),
            "netlink that is full": Try(
                _python(
                    "import socket\nkept = []\nfor i in range(50):\n    s = socket.socket(16, 3, 2)\n"
                    "    s.bind((0, 0)); s.setblocking(False); kept.append(s)\n    try:\n"
                    "        while s.sendto(bytes(60000), s.getsockname()): pass\n"
                    "    except BlockingIOError: pass"
                ),
                is_refused=True,
            ),
            "lists of access": Try(
                _python(
                    "import os, struct\nlist = struct.pack('<IHHIHHIHHI', 2, 1, 6, 0xffffffff, 4, 4, "
                    "0xffffffff, 32, 4, 0xffffffff)\n"
                    "os.setxattr('/srv', 'system.posix_acl_access', list)"
                ),
                is_refused=True,
            ),
            "filters of sockets": Try(
                _python(
                    "import ctypes, socket, struct\ncode = ctypes.create_string_buffer(struct.pack("
                    "'HBBI', 6, 0, 0, 1))\nsocket.socket(2, 2).setsockopt(1, 26, struct.pack("
                    "'HxxxxxxQ', 1, ctypes.addressof(code)))"
                ),
                is_refused=True,
            ),
            "polls of thousands of descriptors": Try(
                _python(
                    "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4097, 4097))"
                ),
                is_refused=True,
            ),
            "stacks": _limited(
                "__import__('threading').Thread(target=time.sleep, args=(1,), daemon=True).start()"
            ),
            "environment": "x=$(head -c 130000 /dev/zero | tr '\\0' x); for i in {1..20}; do "
            "export x$i=$x; done; true; env | wc -c",
            "arguments": "/bin/echo $(seq 1 500000) | wc -c",
            "dentries": "for i in {1..900}; do ls /nonexistent-$i-$RANDOM; done 2>/dev/null",
            "keys": _limited(
                "kept.append(__import__('ctypes').CDLL(None).syscall(248, b'user', "
                "str(i).encode(), bytes(1000), 1000, -4))"
            ),
            "timers": _limited(
                "kept.append(__import__('ctypes').CDLL(None).syscall(222, 0, None, "
                "__import__('ctypes').create_string_buffer(8)))",
                900,
            ),
            "epoll of epolls": _limited("kept.append(__import__('select').epoll())"),
            "file locks": _limited(
                "f = open('/tmp/l', 'w+'); kept.append(f); __import__('fcntl').lockf(f, 1 | 4, 1, i)"
            ),
            "page tables": _python(
                "import mmap\nkept = []\nfor i in range(300):\n    m = mmap.mmap(-1, 2 << 20)\n"
                "    m[0] = 1\n    kept.append(m)"
            ),
            "compressed to expand": "head -c 300M /dev/zero | gzip -9 >/tmp/x.gz; zcat /tmp/x.gz | tail",
            "an out of memory score": "echo -1000 >/proc/self/oom_score_adj; "
            + _python("x = bytearray(400 << 20)"),
            "a victim chosen": "echo 1000 >/proc/1/oom_score_adj; "
            + _python("x = bytearray(400 << 20)"),
            "a spare of what is freed": _python(
                "import ctypes\nlibc = ctypes.CDLL(None)\nfor i in range(100):\n"
                "    libc.malloc_trim(0)\nx = bytearray(300 << 20)"
            ),
        }
    ),
    *DISK.entries(
        {
            "one file": Try("head -c 40M /dev/zero >/big", is_refused=True),
            "many files": "for i in {1..60}; do head -c 1M /dev/zero >/f$i || break; done 2>/dev/null",
            "files in the temporary folder": "for i in {1..60}; do head -c 1M /dev/zero >/tmp/f$i; done",
            "files in shared memory": "for i in {1..60}; do head -c 1M /dev/zero >/dev/shm/f$i; done",
            "files in run": "for i in {1..60}; do head -c 1M /dev/zero >/run/f$i || break; done",
            "files in dev": "for i in {1..60}; do head -c 1M /dev/zero >/dev/f$i || break; done",
            "files in proc": "head -c 1M /dev/zero >/proc/x; echo x >/proc/self/attr/x",
            "allocated files": "for i in {1..60}; do fallocate -l 1M /srv/f$i || break; done",
            "a sparse file": "truncate -s 8E /srv/sparse; truncate -s 10M /srv/sparse2",
            "unlinked files": "for i in {1..60}; do exec {fd}>/srv/u; rm /srv/u; head -c 1M /dev/zero "
            ">&$fd || break; done",
            "unlinked large files": "for i in {1..8}; do exec {fd}>/srv/f; rm /srv/f; "
            "head -c 12M /dev/zero >&$fd; done",
            "copies of the image": "for i in {1..9}; do cp -r /usr/lib /srv/c$i || break; done 2>/dev/null",
            "copies by the overlay": "find /usr/lib -type f -exec touch {} + 2>/dev/null",
            "inodes": "mkdir /m; cd /m; for i in {1..40}; do touch $i-{1..100} || break; done 2>/dev/null",
            "folders": "mkdir /m; cd /m; for i in {1..40}; do mkdir $i-{1..100} || break; done 2>/dev/null",
            "links": "cd /srv; ln -s x {1..3000} 2>/dev/null; ls | wc -l",
            "hard links": "cd /srv; touch x; for i in {1..900}; do ln x h$i; done",
            "names of the longest": "cd /srv; for i in {1..300}; do touch $i$(printf %0250d 0); done",
            "nested folders": _python(
                "import os\nos.chdir('/srv')\nfor i in range(900):\n    os.mkdir('d')\n    os.chdir('d')"
            ),
            "nested folders of long names": _python(
                "import os\nos.chdir('/srv')\nfor i in range(300):\n    os.mkdir('d' * 250)\n"
                "    os.chdir('d' * 250)"
            ),
            "three thousand nested folders": _python(
                "import os\nos.chdir('/srv')\nfor i in range(3000):\n    os.mkdir('d')\n    os.chdir('d')"
            ),
            "a loop of links": "ln -s /srv/a /srv/b; ln -s /srv/b /srv/a; cat /srv/a",
            "a forest of links": "cd /srv; for i in {1..40}; do ln -s /srv l$i; done",
            "extended attributes": "cd /srv; for i in {1..200}; do touch x$i; setfattr -n user.x -v "
            "$(printf %0999d 0) x$i; done",
            "pipes and sockets as files": "cd /srv; for i in {1..300}; do mkfifo p$i; done",
            "a name that is no text": "touch $'/srv/\\xff\\xfe' $'/srv/a\\nb' $'/srv/\\033[2J'; ls /srv",
            "a growing log": "(while :; do echo x >>/var/log/x; done) & sleep 0.5",
            "a directory for a graded file": "rm -f /srv/answer; mkdir /srv/answer; echo x >/srv/answer/x",
            "a directory for the accounts": "rm /etc/passwd; mkdir /etc/passwd; head -c 9M /dev/zero >/big",
            "a directory for the shadow": "rm /etc/shadow /etc/group; mkdir /etc/shadow /etc/group",
            "a pipe for the accounts": "rm /etc/passwd; mkfifo /etc/passwd",
            "a device for the accounts": "rm /etc/passwd; ln -s /dev/zero /etc/passwd",
            "a link to itself for the accounts": "rm /etc/passwd; ln -s /etc/passwd /etc/passwd",
            "accounts that are huge": "head -c 14M /dev/zero | tr '\\0' ':' >/etc/passwd",
            "accounts by the thousand": "for i in {1..20000}; do echo u$i:x:$i:$i::/:/x; done >>/etc/passwd",
            "accounts that are no text": "head -c 100000 /dev/urandom >/etc/passwd",
            "everything removed": "rm -rf --no-preserve-root / 2>/dev/null; echo $?",
            "the root moved": "mv /usr /usr2; mv /etc /etc2; mv /bin /bin2",
            "no rights for anybody": "chmod -R 0 /etc /srv /root 2>/dev/null; chmod 0 /",
            "files that cannot change": "chattr +i /srv/answer; chattr +a /etc/passwd",
        }
    ),
    *PROCESSES.entries(
        {
            "a fork bomb": ":() { :|:& }; :; sleep 9",
            "forks": _limited("kept.append(os.fork() or (time.sleep(2), os._exit(0)))"),
            "vforks by the shell": "for i in {1..200}; do sleep 3 & done; sleep 0.2",
            "zombies": _limited("os.fork() or os._exit(0)"),
            "zombies of the first process": "for i in {1..100}; do (setsid true &) ; done; sleep 0.2",
            "stopped processes": "for i in {1..60}; do sleep 9 & kill -STOP $!; done",
            "processes of other users": "for i in 1 2 3; do useradd u$i; su u$i -c 'for i in {1..30}; do "
            "sleep 3 & done' & done 2>/dev/null; sleep 0.5",
            "groups of processes": "for i in {1..60}; do setsid sleep 3 & done; sleep 0.2",
            "a chain of shells": "x='eval \"$x\"'; bash -c 'exec bash -c \"bash; bash\"'; ulimit -s 100; f() "
            "{ bash -c f; }; export -f f; f",
            "threads": _limited(
                "__import__('threading').Thread(target=time.sleep, args=(2,), daemon=True).start()"
            ),
            "open files": _limited("kept.append(open('/dev/null'))", 5000),
            "open files of many": "for i in {1..20}; do "
            + _python(
                "import time\nk = []\ntry:\n    while len(k) < 2000: k.append(open('/dev/null'))\n"
                "except OSError: pass\ntime.sleep(1)"
            )
            + "\ndone",
            "descriptors of the shell": 'for i in {10..900}; do eval "exec $i</dev/null"; done',
            "descriptors of high numbers": "exec 200</dev/null 255</dev/null 1000</dev/null; echo x",
            "descriptors in flight": _python(
                "import array, socket\nkept = []\nfor i in range(200):\n    a, b = socket.socketpair()\n"
                "    a.sendmsg([b'x'], [(1, 1, array.array('i', [b.fileno()] * 100))])\n"
                "    kept.append(a)"
            ),
            "watches of files": _limited(
                "kept.append(__import__('ctypes').CDLL(None).inotify_init1(0))", 400
            ),
            "watches of many files": _python(
                "import ctypes, os\nlibc = ctypes.CDLL(None)\nf = libc.inotify_init1(0)\n"
                "for root, _, names in os.walk('/usr/lib'):\n    libc.inotify_add_watch(f, root.encode(), 2)"
            ),
            "message queues": _limited(
                "kept.append(__import__('ctypes').CDLL('librt.so.1').mq_open(b'/q%d' % i, 66, 0o600, None))"
            ),
            "message queues of System V": _limited(
                "kept.append(__import__('ctypes').CDLL(None).msgget(0, 0o1600))"
            ),
            "semaphores": _limited(
                "kept.append(__import__('ctypes').CDLL(None).semget(0, 250, 0o1600))"
            ),
            "pending signals": _python(
                "import ctypes, os, signal\nsignal.pthread_sigmask(0, range(34, 60))\n"
                "libc = ctypes.CDLL(None)\nfor i in range(5000):\n    libc.sigqueue(os.getpid(), 40, 0)"
            ),
            "events": _limited("kept.append(__import__('ctypes').CDLL(None).eventfd(0, 0))", 900),
            "timers by descriptors": _limited(
                "kept.append(__import__('ctypes').CDLL(None).timerfd_create(0, 0))", 900
            ),
            "asynchronous input": _limited(
                "kept.append(__import__('ctypes').CDLL(None).syscall(206, 100, "
                "__import__('ctypes').create_string_buffer(8)))"
            ),
            "watches of a file system": _limited(
                "kept.append(__import__('ctypes').CDLL(None).syscall(300, 0, 0))"
            ),
            "terminals": _limited("kept.append(os.openpty())"),
            "user namespaces": _limited(
                "kept.append(__import__('ctypes').CDLL(None).unshare(0x10000000))"
            ),
            "limits raised": "ulimit -u unlimited; ulimit -n 1048576; ulimit -l unlimited; "
            "prlimit --pid $$ --nproc=99999",
            "limits lowered": "ulimit -u 1; ulimit -n 4; ulimit -v 1000; ls",
            "limits of the first process": "prlimit --pid 1 --nofile=3:3 --nproc=1:1 --fsize=0:0 --as=1:1",
            "groups of control": "mkdir /sys/fs/cgroup/x; echo $$ >/sys/fs/cgroup/cgroup.procs; "
            "mount -t cgroup2 none /mnt; cat /proc/self/cgroup | wc -l",
        }
    ),
]
