"""Start a server, wait until it is ready, say why it is not, end it without a trace.

Whether the model fits into a CPU's memory is asked before, since a server would find out late, or
be killed and not say why.
"""

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import httpx
import psutil

from agentrl.engine.servers import watchdog
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.install import Installation, Product
from agentrl.errors import ConfigError

HOST = "127.0.0.1"
STOP_S = 20.0
"""How long a server may take to end by itself; then its process group is killed."""
CPU_KV_TOKENS = 65_536
"""That the cache of a server on a CPU holds, if nothing else is asked for."""
READY = ("ready to roll!", "Application startup complete.")
"""What a log says once a server serves."""
_TAIL_BYTES = 64_000
_EXCEPTION = re.compile(
    r"^(?:\(\w+ pid=\d+\) ERROR [\d: -]+)?(?:\[[^\]]*\] )?"
    r"((?:[\w.]*(?:Error|Exception|Interrupt)|.*error|  Value error)[:,] .+?)(?: \[type=.*)?$"
)
_NO_REASON = "See root cause above"
_TOO_LARGE = (
    "the memory does not suffice; lower engine.{name}.kv_tokens or engine.{name}.memory_fraction, "
    "or choose a smaller model"
)
_NO_CACHE = (
    "the memory does not suffice for the cache; lower engine.{name}.kv_tokens or raise "
    "engine.{name}.memory_fraction"
)
_KNOWN = (
    ("address already in use", "its port {port} is taken; give another one or none"),
    ("out of memory", _TOO_LARGE),
    ("can't allocate memory", _TOO_LARGE),
    ("Not enough memory", _NO_CACHE),
    ("memory for the KV cache", _NO_CACHE),
)
PROGRAM_BYTES = 2_200_000_000
"""What the server's processes take without a model; measured with 0.5.23 on a CPU."""
_CGROUP = Path("/sys/fs/cgroup")
MEMORY_LIMITS = (
    (_CGROUP, "memory.max", "memory.current"),
    (_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A started server; `stop` it, also if it never became ready."""

    product: Product
    url: str
    port: int
    log: Path
    guard: "subprocess.Popen[bytes]"
    command: Sequence[str] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    keys: Keys
    secrets: Mapping[str, str] = field(repr=False)
    """Options that reach it by a pipe."""
    lives: int = 1
    """How often it was started."""

    @property
    def alive(self) -> bool:
        """True while its first process runs; says nothing about readiness."""
        return self.guard.poll() is None

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until it answers.

        Raises:
            ConfigError: it ended, or took too long; the log's tail says why.
        """
        deadline = time.monotonic() + timeout_s
        async with httpx.AsyncClient(timeout=5.0) as http:
            while not await _is_server_healthy(http, self.url):
                if not self.alive:
                    raise ConfigError(
                        f"the {self.product.title} server did not start: {self.last_words()}"
                    )
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"the {self.product.title} server was not ready within {timeout_s:g} s; "
                        f"look into {self.log} or raise "
                        f"engine.{self.product.name}.start_timeout_s"
                    )
                await asyncio.sleep(0.25)

    def last_words(self) -> str:
        """Why it ended, from its log and exit status, in one sentence."""
        status = self.guard.poll()
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            tail = file.read().decode(errors="replace")
        said = explain_log(tail, self.port, status, self.product.name)
        return f"{said} (log: {self.log})"

    def again(self) -> "Server":
        """Start a server that ended once more, where it was, with a log of its own."""
        lives = self.lives + 1
        log = self.log.with_name(f"{self.product.name}-{self.port}-{lives}.log")
        guard = _launch_under_watchdog(self.command, self.env, self.secrets, log)
        return replace(self, lives=lives, log=log, guard=guard)

    @property
    def is_stopped(self) -> bool:
        """True if one of its processes was stopped and not continued."""
        stopped = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        with suppress(psutil.Error):
            return any(process.status() in stopped for process in self._list_processes())
        return False

    def kill(self) -> None:
        """End it and all its processes at once, since it hangs, and wait for that."""
        for process in self._list_processes():
            with suppress(psutil.Error):
                process.kill()
        self.guard.kill()
        self.guard.wait()

    def _list_processes(self) -> Sequence[psutil.Process]:
        """Without the guard."""
        with suppress(psutil.Error):
            return psutil.Process(self.guard.pid).children(recursive=True)
        return ()

    def stop(self) -> None:
        """End it and all its processes and wait for that; a second call does nothing."""
        if self.guard.poll() is None:
            self.guard.terminate()
        self.guard.wait(STOP_S + 10)


def launch(
    product: Product,
    command: Sequence[str],
    env: Mapping[str, str],
    logs: Path,
    *,
    host: str,
    port: int,
    keys: Keys,
    secrets: Mapping[str, str],
) -> Server:
    """Start a server that will listen on the port; its log goes into the folder `logs`."""
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{product.name}-{port}.log"
    return Server(
        product=product,
        url=f"http://{host}:{port}",
        port=port,
        log=log,
        guard=_launch_under_watchdog(command, env, secrets, log),
        command=command,
        env=env,
        keys=keys,
        secrets=secrets,
    )


def _launch_under_watchdog(
    command: Sequence[str], env: Mapping[str, str], secrets: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    guard = Path(watchdog.__file__)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-I", str(guard), str(os.getpid()), str(STOP_S), *command],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # so that Ctrl-C at a terminal reaches us alone
        )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(dict(secrets)).encode())
    return process


def explain_log(tail: str, port: int, status: int | None, name: str) -> str:
    """The reason that the last lines of a server's log give: the last ones since it was ready."""
    for sign in READY:
        tail = tail.rpartition(sign)[2]
    for sign, reason in _KNOWN:
        if sign.lower() in tail.lower():
            return reason.format(port=port, name=name)
    said = [match[1] for line in tail.splitlines() if (match := _EXCEPTION.match(line))]
    said = [line.strip() for line in said if _NO_REASON not in line]
    if said:
        return said[-1]
    if status == 137:
        return "it was killed by force; the machine may have run out of memory"
    return f"it ended with status {status} and no message"


def check_port_or_find_free_one(host: str, port: int) -> int:
    """The port, or a free one for 0; raises ConfigError if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of {host} cannot be used ({error.strerror}); give another one or none"
            ) from error
        free: int = probe.getsockname()[1]
        return free


async def _is_server_healthy(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/health")).status_code == 200
    except httpx.HTTPError:
        return False


def find_startable(product: Product, dtype: str, kv_tokens: int, model: Path) -> Installation:
    """The installation, if a server could start; otherwise ConfigError says at once why not."""
    where = product.require()
    if where.flavour == "cpu":
        value_bytes = 2 if dtype == "bfloat16" else 4
        kv_tokens = kv_tokens or CPU_KV_TOKENS
        check_fits(product, model, value_bytes=value_bytes, kv_tokens=kv_tokens)
    return where


def given_arguments(pairs: Mapping[str, object], flags: Sequence[str]) -> list[str]:
    """Of a command line: options and their values, but for those that are None, then the flags."""
    return [*(str(part) for pair in pairs.items() if pair[1] is not None for part in pair), *flags]


def more_arguments(product: Product, text: str, ours: Sequence[str], reason: str) -> list[str]:
    """What a user adds to it; ConfigError with the reason for an option that is given already."""
    more = shlex.split(text)
    for name in {argument.partition("=")[0] for argument in more}.intersection(ours):
        raise ConfigError(
            f"engine.{product.name}.extra_args: {name} cannot be given, since {reason}"
        )
    return more


def check_fits(product: Product, model: Path, *, value_bytes: int, kv_tokens: int) -> None:
    """Raise ConfigError if the weights and so many cached tokens are more than what is free.

    `value_bytes`: of one weight, key or value.
    """
    weights = _count_weight_values_in_headers(model) * value_bytes
    cache = cache_bytes_per_token(model, value_bytes) * kv_tokens
    needed, free = weights + cache + PROGRAM_BYTES, free_memory()
    if needed > free:
        raise ConfigError(
            f"the memory does not suffice for {product.title}: {needed / 1e9:,.1f} GB are "
            f"needed (weights {weights / 1e9:,.1f}, a cache of {kv_tokens:,} tokens "
            f"{cache / 1e9:,.1f}, the "
            f"program {PROGRAM_BYTES / 1e9:,.1f}), {free / 1e9:,.1f} GB are free; lower "
            f"engine.{product.name}.kv_tokens, or choose a smaller model"
        )


def _count_weight_values_in_headers(model: Path) -> int:
    """As the headers of the weight files say; the format begins with the header's length."""
    total = 0
    for path in model.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        total += sum(prod(entry["shape"]) for name, entry in header.items() if name[:2] != "__")
    return total


def cache_bytes_per_token(model: Path, value_bytes: int, multiple: int = 1) -> int:
    """Keys and values of one token in layers of full attention; 0 where others are kept.

    `multiple`: heads are padded to it.
    """
    config: Mapping[str, Any] = json.loads((model / "config.json").read_bytes())
    kinds = config.get("layer_types")
    layers = kinds.count("full_attention") if kinds else config.get("num_hidden_layers")
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    if not layers or not heads or not width or "kv_lora_rank" in config:
        return 0
    head_dim = -(-(config.get("head_dim") or width // heads) // multiple) * multiple
    return int(value_bytes * 2 * layers * (config.get("num_key_value_heads") or heads) * head_dim)


def free_memory() -> int:
    """What the machine, or the container, has left; what only caches files counts as free."""
    free = int(_read_proc_fields(Path("/proc/meminfo"))["MemAvailable:"]) * 1024
    for folder, most, used in MEMORY_LIMITS:
        if (folder / most).exists() and (limit := (folder / most).read_text().strip()) != "max":
            stat = _read_proc_fields(folder / "memory.stat")
            cached = int(stat["active_file"]) + int(stat["inactive_file"])
            free = min(free, int(limit) - int((folder / used).read_text()) + cached)
    return free


def _read_proc_fields(path: Path) -> Mapping[str, str]:
    return {line.split()[0]: line.split()[1] for line in path.read_text().splitlines()}
