"""The question whether this process runs in a container, where some advice does not help."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["container"]

_FILES = {"docker": ".dockerenv", "podman": "run/.containerenv"}
_WORDS = {
    "kubepods": "Kubernetes",
    "docker": "docker",
    "containerd": "containerd",
    "libpod": "podman",
    "lxc": "lxc",
}
"""Parts of the names of control groups that container engines make, with the engines."""


def container(environment: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return the name of the engine of the container that this process runs in; "" outside.

    The signs are the files that docker and podman make, the variable `container` that engines give
    to the first process (systemd.io/CONTAINER_INTERFACE), the variables of Kubernetes, and the
    names of control groups. A container of an engine that leaves no sign is not recognized.
    """
    for name, file in _FILES.items():
        if (root / file).exists():
            return name
    if told := environment.get("container") or _of_first_process(root / "proc/1/environ"):
        return told
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "Kubernetes"
    try:
        groups = (root / "proc/1/cgroup").read_text()
    except OSError:
        return ""
    return next((name for word, name in _WORDS.items() if word in groups), "")


def _of_first_process(path: Path) -> str:
    """Return the variable `container` of process 1; "" if it has none or if only root may read."""
    try:
        entries = path.read_bytes().split(b"\0")
    except OSError:
        return ""
    found = (each for each in entries if each.startswith(b"container="))
    return next(found, b"").partition(b"=")[2].decode(errors="replace")
