"""The world-readable folders that containers mount: interpreter, packages, our code, a tiny /etc.

The host's interpreter and packages may lie under a home that the sandbox's uid cannot enter, and their paths must not
show inside. So they are copied once per machine and version, each folder under a name that is a hash of what it holds,
filled beside its place and moved there by one rename.
"""

from __future__ import annotations

import compileall
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from py_compile import PycInvalidationMode

from packaging.requirements import Requirement

from k3rl.environments.sandbox.spec import SandboxSpec
from k3rl.errors import SandboxError

FORMAT = "1"  # part of every folder's name: raise it when the layout changes
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
STDLIB_LEFT_OUT = (
    "test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo", "pydoc_data", "distutils",
    "site-packages", "dist-packages", "config-*", "__pycache__", "*.pyc", "*.a",
)  # fmt: skip
ETC = {
    "passwd": "root:x:0:0::/:/bin/false\nagent:x:1000:1000::/w:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost box\n",
    "gitconfig": "[user]\nname = agent\nemail = agent@box\n[init]\ndefaultBranch = main\n[gc]\nauto = 0\n"
    "[advice]\ndetachedHead = false\n",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """Host folders to mount read-only, and where things are inside."""

    binds: tuple[tuple[Path, str], ...]  # (host folder, place inside)
    python: str  # the interpreter, inside
    library_path: str  # for LD_LIBRARY_PATH, may be empty


def prepare(spec: SandboxSpec) -> Runtime:
    """Build what is missing and return where it lies. Raises SandboxError (disk, foreign folder)."""
    root = spec.runtime or _default_root()
    try:
        _own(root)
        base = Path(sys.base_prefix)
        binds = [(_folder(root, "site", _site_key(spec), lambda place: _fill_site(place, spec)), "/opt/site")]
        binds += [(_folder(root, "box", _box_key(spec), lambda place: _fill_box(place, spec)), "/opt/box")]
        binds += [(_folder(root, "etc", repr(ETC), _fill_etc), "/etc")]
        if base.is_relative_to("/usr"):
            library = "" if base == Path("/usr") else str(base / "lib")
            return Runtime(binds=tuple(binds), python=str(base / f"bin/python{VERSION}"), library_path=library)
        binds += [(_folder(root, "python", f"{sys.version} {base}", _fill_python), "/opt/python")]
    except OSError as error:
        raise SandboxError(f"cannot prepare the sandbox's runtime folder {root}: {error}") from error
    return Runtime(binds=tuple(binds), python=f"/opt/python/bin/python{VERSION}", library_path="/opt/python/lib")


def _default_root() -> Path:
    if os.geteuid() == 0:
        return Path("/var/tmp/k3rl-runtime")  # homes of root are often closed to the uid that sandboxes run as
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "k3rl-runtime"


def _own(root: Path) -> None:
    """Make the root; refuse one that somebody else could write to."""
    root.mkdir(parents=True, exist_ok=True)
    info = root.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise SandboxError(f"the runtime folder {root} belongs to, or can be written by, somebody else: remove it")
    root.chmod(0o755)


def _folder(root: Path, name: str, key: str, fill: Callable[[Path], None]) -> Path:
    target = root / f"{name}-{hashlib.sha256(f'{FORMAT} {key}'.encode()).hexdigest()[:16]}"
    if target.is_dir():
        return target
    building = Path(tempfile.mkdtemp(dir=root, prefix=f"{name}-building-"))
    try:
        fill(building)
        for base, _, files in os.walk(building):
            os.chmod(base, 0o755)
            for file in files:
                path = Path(base, file)
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        os.rename(building, target)
    except OSError:
        if not target.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)  # gone already unless something failed
    return target


def _fill_python(place: Path) -> None:
    """The interpreter, the shared libraries it brings itself, and its standard library, byte-compiled anew: the
    host's byte code would carry the host's paths."""
    base = Path(sys.base_prefix)
    (place / "bin").mkdir()
    (place / "lib").mkdir()
    binary = place / f"bin/python{VERSION}"
    shutil.copy2((base / f"bin/python{VERSION}").resolve(), binary)
    stdlib = place / f"lib/python{VERSION}"
    shutil.copytree(base / f"lib/python{VERSION}", stdlib, ignore=shutil.ignore_patterns(*STDLIB_LEFT_OUT))
    for source in _own_libraries(base, [base / f"bin/python{VERSION}", *(stdlib / "lib-dynload").glob("*.so")]):
        shutil.copy2(source, place / "lib" / source.name)
    for path in stdlib.glob("_sysconfigdata*.py"):
        path.write_text(path.read_text().replace(str(base), "/opt/python"))
    _compile(place, "/opt/python")


def _own_libraries(base: Path, binaries: list[Path]) -> Iterator[Path]:
    """Shared libraries under `base` that these binaries load."""
    listed = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    for path in sorted({Path(found) for found in re.findall(r"=> (/\S+)", listed)}):
        if path.is_relative_to(base):
            yield path


def _distributions(names: tuple[str, ...]) -> dict[str, metadata.Distribution]:
    """These distributions and all that they require here, by normalised name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise SandboxError(f"the sandbox needs the package {name!r}: pip install {name}") from None
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return dict(sorted(found.items()))


def _site_key(spec: SandboxSpec) -> str:
    versions = [f"{name}=={found.version}" for name, found in _distributions(spec.packages).items()]
    return f"{sys.version} {versions}"


def _fill_site(place: Path, spec: SandboxSpec) -> None:
    for found in _distributions(spec.packages).values():
        for file in found.files or ():
            if ".." in file.parts or file.suffix == ".pyc":
                continue  # scripts, or byte code that carries the host's paths
            target = place / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(file.locate()), target)
    _compile(place, "/opt/site")


def _job_sources(spec: SandboxSpec) -> dict[str, Path]:
    """Every file of ours that goes inside, by its path below /opt/box."""
    here = Path(__file__).parent
    sources = {f"inside/{path.name}": path for path in sorted((here / "inside").glob("*.py"))}
    for dotted in spec.jobs:
        found = importlib.util.find_spec(dotted)
        if found is None or found.origin is None:
            raise SandboxError(f"the sandbox's job module {dotted!r} cannot be found")
        origin, name = Path(found.origin), dotted.rpartition(".")[2]
        if origin.name != "__init__.py":
            sources[f"jobs/{name}.py"] = origin
            continue
        for path in sorted(origin.parent.rglob("*.py")):
            sources[f"jobs/{name}/{path.relative_to(origin.parent)}"] = path
    return sources


def _box_key(spec: SandboxSpec) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name, path in _job_sources(spec).items():
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _fill_box(place: Path, spec: SandboxSpec) -> None:
    for name, path in _job_sources(spec).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place / name)
    _compile(place, "/opt/box")
    (place / "bin").mkdir()
    base = Path(sys.base_prefix)
    inside = base if base.is_relative_to("/usr") else Path("/opt/python")
    for name in ("python", "python3"):
        (place / "bin" / name).symlink_to(inside / f"bin/python{VERSION}")


def _fill_etc(place: Path) -> None:
    for name, text in ETC.items():
        (place / name).write_text(text)
    (place / "alternatives").mkdir()  # a place to mount the host's: awk and others are links through it


def _compile(place: Path, inside: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of other people's packages; as errors they would leave gaps
        compileall.compile_dir(
            place,
            maxlevels=20,
            stripdir=str(place),
            prependdir=inside,
            quiet=2,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
