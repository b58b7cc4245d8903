"""One bubblewrap container: its command line, its process, its control socket."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import subprocess
from contextlib import ExitStack, suppress
from typing import Any

from k3rl.environments.sandbox.inside.wire import HEAD, decode, encode, sizes
from k3rl.environments.sandbox.runtime import Runtime
from k3rl.environments.sandbox.spec import SandboxSpec, inside_config
from k3rl.errors import SandboxError

UIDS = range(2_000_000_000, 2_000_010_000)  # above what systems and container engines hand out
GRACE = 20.0  # seconds beyond an operation's own limit before the container is given up
START_SECONDS = 60.0
ENV = {
    "PATH": "/opt/box/bin:/usr/bin:/bin",
    "HOME": "/w",
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "TERM": "dumb",
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "PYTHONPATH": "/opt/site",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
}
BOOT = "import sys; sys.path.insert(0, '/opt/box'); from inside.zygote import main; main(int(sys.argv[1]))"


def bwrap_command(spec: SandboxSpec, runtime: Runtime, fd: int) -> list[str]:
    """Everything is read-only but three sized memory folders; every namespace is new; no capability is left."""
    command = ["bwrap", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.lexists(f"/{name}"):
            merged = os.path.islink(f"/{name}")
            command += ["--symlink", f"usr/{name}", f"/{name}"] if merged else ["--ro-bind", f"/{name}", f"/{name}"]
    for source, target in runtime.binds:
        command += ["--ro-bind", str(source), target]
    command += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    command += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", str(1 << 20), "--tmpfs", "/dev/shm"]
    command += ["--mqueue", "/dev/mqueue", "--remount-ro", "/dev"]
    command += ["--perms", "1777", "--size", str(spec.tmp_bytes), "--tmpfs", "/tmp"]
    command += ["--size", str(spec.work_bytes), "--tmpfs", "/w", "--remount-ro", "/", "--chdir", "/"]
    command += ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
    command += ["--hostname", "box", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    command += ["--clearenv", "--setenv", "LANG", "C.UTF-8"]
    if runtime.library_path:
        command += ["--setenv", "LD_LIBRARY_PATH", runtime.library_path]
    return [*command, runtime.python, "-I", "-S", "-B", "-c", BOOT, str(fd)]


class UidLease:
    """A uid that no other live sandbox of this machine has: as root, limits on processes are counted per uid.

    The lock is an abstract socket, which the kernel drops with its owner, however that ends.
    """

    def __init__(self) -> None:
        start = random.randrange(len(UIDS))  # only to meet few taken ones; nothing observable depends on it
        for offset in range(len(UIDS)):
            uid = UIDS[(start + offset) % len(UIDS)]
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lock.bind(f"\0k3rl-sandbox-{uid}")
            except OSError:
                lock.close()
                continue
            self.uid, self._lock = uid, lock
            return
        raise SandboxError(f"all {len(UIDS)} uids for sandboxes are taken: are old runs still alive?")

    def release(self) -> None:
        self._lock.close()


class Container:
    """A started container. Operations are one request and one reply; any trouble makes it `broken`."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, lease: UidLease | None) -> None:
        self._process, self._control, self._lease = process, control, lease
        self._turn = asyncio.Lock()
        self.broken = False
        self.uses = 0

    @classmethod
    async def start(cls, spec: SandboxSpec, runtime: Runtime) -> Container:
        """Start one and wait until its imports are done. Raises SandboxError."""
        for tool in ("bwrap", *(["setpriv"] if os.geteuid() == 0 else [])):
            if shutil.which(tool) is None:
                raise SandboxError(f"{tool} is not installed: apt install bubblewrap util-linux")
        container = cls._launch(spec, runtime)
        try:
            env = {**ENV, **({"LD_LIBRARY_PATH": runtime.library_path} if runtime.library_path else {})}
            await container.call(inside_config(spec, env, ("/opt/box/jobs", "/opt/site")), seconds=START_SECONDS)
        except BaseException:
            await container.discard()
            raise
        return container

    @classmethod
    def _launch(cls, spec: SandboxSpec, runtime: Runtime) -> Container:
        """The process and our end of its socket. Raises SandboxError where the system gives no more of something."""
        with ExitStack() as undo:  # until the container owns what was taken
            lease = UidLease() if os.geteuid() == 0 else None
            if lease:
                undo.callback(lease.release)
            try:
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                with theirs:
                    command = bwrap_command(spec, runtime, theirs.fileno())
                    if lease:
                        uid = str(lease.uid)
                        command = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", *command]
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                        pass_fds=(theirs.fileno(),), cwd="/", env={"PATH": os.environ.get("PATH", os.defpath)},
                    )  # fmt: skip
            except OSError as error:  # no process, descriptor or memory left: no fault of the domain
                raise SandboxError(f"no sandbox can be started: {error}; use fewer sandboxes at once") from error
            undo.pop_all()
        ours.setblocking(False)
        return cls(process, ours, lease)

    async def call(self, header: dict[str, Any], blob: bytes = b"", *, seconds: float) -> tuple[dict[str, Any], bytes]:
        """One request. Raises SandboxError when the container fails; cancellation leaves it broken, too."""
        async with self._turn:
            if self.broken:
                raise SandboxError("the sandbox is broken by an earlier failure")
            whole, self.broken = False, True  # until the reply is in
            try:
                async with asyncio.timeout(seconds + GRACE):
                    reply, data = await self._exchange(encode(header, blob))
                whole = True
            except TimeoutError:
                raise SandboxError(f"the sandbox gave no answer within {seconds + GRACE:g} s") from None
            except (OSError, EOFError, ValueError) as error:
                raise SandboxError(f"the sandbox died: {error or type(error).__name__}{self._last_words()}") from error
            finally:
                self.broken = not whole
            if "error" in reply:
                self.broken = True
                raise SandboxError(f"the sandbox failed: {reply['error']}")
            return reply, data

    async def _exchange(self, frame: bytes) -> tuple[dict[str, Any], bytes]:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._control, frame)
        buffer = bytearray()
        while len(buffer) < HEAD.size:
            buffer += await self._receive(loop, 1 << 18)
        text, blob = sizes(bytes(buffer[: HEAD.size]))
        while (missing := HEAD.size + text + blob - len(buffer)) > 0:
            buffer += await self._receive(loop, min(missing, 1 << 20))
        return decode(bytes(buffer[HEAD.size :]), text)

    async def _receive(self, loop: asyncio.AbstractEventLoop, most: int) -> bytes:
        data = await loop.sock_recv(self._control, most)
        if not data:
            raise EOFError("its end of the control socket is closed")
        return data

    def _last_words(self) -> str:
        """The end of what bwrap or PID 1 wrote to standard error, if it is dead."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        if self._process.poll() is None or self._process.stderr is None or self._process.stderr.closed:
            return ""
        os.set_blocking(self._process.stderr.fileno(), False)
        lines = (self._process.stderr.read() or b"").decode(errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""

    async def discard(self) -> None:
        """End it. PID 1 exits when the socket closes, and the kernel ends the rest with it before bwrap is done."""
        self.broken = True
        self._control.close()
        try:
            await asyncio.to_thread(self._process.wait, 3.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        finally:
            if self._process.poll() is None:  # cancelled while waiting
                self._process.kill()
                self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()
            if self._lease:
                self._lease.release()
