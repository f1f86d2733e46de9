"""Actors of which a process hosts several: in threads of this one, or in a few Ray actors.

A process that imports torch has 300 MB, so that many runners need many machines. Here they are
cheap, and all but their processes is real: the groups that call them, and with Ray the messages.
"""

import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, ClassVar

import ray

from agentpeft.policies.workers.time_limits import within

_LIMIT_S = 3600.0


class Host:
    """Actors of one process, by their indices."""

    def __init__(self):
        self._actors = {}

    def start(self, index, kind, settings, num_threads):
        self._actors[index] = actor = kind()
        actor.start(settings, num_threads)

    def call(self, index, method, args):
        return getattr(self._actors[index], method)(*args)


class ThreadHost:
    """A host in this process. The calls of an actor follow each other; those beside have another
    thread for each actor."""

    def __init__(self):
        self._host = Host()
        self._calls = {}

    def start(self, index, kind, settings, num_threads):
        return self._submit(index, 1, self._host.start, index, kind, settings, num_threads)

    def call(self, index, method, args, num_returns, is_beside):
        line = index, is_beside
        return self._submit(line, num_returns, self._host.call, index, method, args)

    def _submit(self, line, num_returns, function, *args):
        if line not in self._calls:
            self._calls[line] = calls = SimpleQueue()
            threading.Thread(target=self._work, args=(calls,), daemon=True).start()
        futures = [Future() for _ in range(num_returns)]
        self._calls[line].put((futures, function, args))
        return futures if num_returns > 1 else futures[0]

    def _work(self, calls):
        while True:
            futures, function, args = calls.get()
            try:
                result = function(*_resolved(args))
            except Exception as error:
                for future in futures:
                    future.set_exception(error)
                continue
            for future, each in zip(futures, result if len(futures) > 1 else [result], strict=True):
                future.set_result(each)

    def fetch(self, refs):
        return [ref.result() for ref in refs]

    def wait(self, refs, timeout_s):
        done = wait(refs, timeout_s, FIRST_COMPLETED).done
        return [place for place, ref in enumerate(refs) if ref in done]


def _resolved(value):
    if isinstance(value, Future):
        return value.result()
    return type(value)(map(_resolved, value)) if type(value) in (list, tuple) else value


class RayHost:
    """A host that is a Ray actor of its own; it is called as `RayActors` does, within limits."""

    def __init__(self, num_actors):
        groups = {"main": 1, "beside": num_actors + 1}
        made = ray.remote(concurrency_groups=groups, scheduling_strategy="SPREAD")(Host)
        self._actor = made.options(num_cpus=0.1).remote()

    def start(self, index, kind, settings, num_threads):
        options = {"concurrency_group": "main"}
        return self._actor.start.options(**options).remote(index, kind, settings, num_threads)

    def call(self, index, method, args, num_returns, is_beside):
        group = "beside" if is_beside else "main"
        call = self._actor.call.options(num_returns=num_returns, concurrency_group=group)
        return within(_LIMIT_S, "calling", lambda: call.remote(index, method, args))

    def fetch(self, refs):
        return within(_LIMIT_S, "fetching", lambda: ray.get(list(refs)))

    def wait(self, refs, timeout_s):
        for number in (1, len(refs)):
            look = partial(ray.wait, refs, num_returns=number, timeout=timeout_s, fetch_local=False)
            ready, _ = within(_LIMIT_S, "waiting", look)
            timeout_s = 0
        there = set(ready)
        return [place for place, ref in enumerate(refs) if ref in there]


@dataclass
class Hosting:
    """How actors are hosted: `num_per_host` None is threads of this process."""

    num_per_host: int | None = None

    def start(self, spec, settings):
        return HostedActors(spec, settings, self.num_per_host)


IN_THREADS = Hosting()


class HostedActors:
    """See `Actors`; `started` are all that were started, for whoever wants to ask them more."""

    started: ClassVar[list["HostedActors"]] = []

    def __init__(self, spec, settings, num_per_host):
        self._spec, self.num_actors = spec, spec.num_actors
        self._num_per_host = num_per_host or spec.num_actors
        num_hosts = -(-spec.num_actors // self._num_per_host)
        self._hosts: list[Any] = [
            ThreadHost() if num_per_host is None else RayHost(self._num_per_host)
            for _ in range(num_hosts)
        ]
        if num_per_host is None:  # models are not loaded by several threads at once
            for index in range(spec.num_actors):
                self.fetch([self._start(index, settings)])
        else:
            self.fetch([self._start(index, settings) for index in range(spec.num_actors)])
        self.started.append(self)

    def call(self, index, method, *args, num_returns=1, is_beside=False):
        return self.call_named(index, method.__name__, args, num_returns, is_beside)

    def call_named(self, index, name, args=(), num_returns=1, is_beside=False):
        return self._host_of(index).call(index, name, args, num_returns, is_beside)

    def fetch(self, refs):
        return self._hosts[0].fetch(refs)

    def wait(self, refs, timeout_s=None):
        return self._hosts[0].wait(refs, timeout_s)

    def restart(self, index, settings):
        self.fetch([self._start(index, settings)])

    def find_places(self):
        return ["stays"] * self.num_actors

    def close(self):
        if self._spec.is_closed:
            self.fetch([self.call_named(index, "close") for index in range(self.num_actors)])

    def _start(self, index, settings):
        num_threads = self._spec.num_threads
        return self._host_of(index).start(index, self._spec.kind, settings, num_threads)

    def _host_of(self, index):
        return self._hosts[index // self._num_per_host]
