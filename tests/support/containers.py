"""Processes in cgroups such as container runtimes make."""

from pathlib import Path

UID = "0b5ba9f2-3f36-4c3c-9a3c-5d9a6a0b{:04x}"

PATHS = {
    "containerd": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice"
    "/cri-containerd-{id}.scope",
    "containerd, cgroupfs": "kubepods/burstable/pod{uid}/{id}",
    "cri-o": "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid_}.slice/crio-{id}.scope",
    "docker": "system.slice/docker-{id}.scope",
    "docker, cgroupfs": "docker/{id}",
}


# Each child moves itself to the given cgroup, opens a file that is not there, and lives 5 ms. The only other
# open is that of the cgroup's file, once, on the host.
PROGRAM = """
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    int procs = *words[1] ? open(words[1], O_WRONLY) : -1;
    for (int left = atoi(words[2]); left; left--) {
        if (fork()) { wait(0); continue; }
        if (procs >= 0 && write(procs, "0", 1) != 1) _exit(1);
        open("/nonexistent/from/short", O_RDONLY);
        usleep(5000);
        _exit(0);
    }
    return 0;
}
"""


def container_id(number: int) -> str:
    return f"{number:02x}" * 32


def group(hierarchy: Path, path: str, number: int) -> Path:
    """Create the cgroup of a container, and return its directory."""
    uid = UID.format(number)
    made = hierarchy / path.format(uid=uid, uid_=uid.replace("-", "_"), id=container_id(number))
    made.mkdir(parents=True)
    return made


def write_logs(logs: Path, number: int, pod: str, namespace: str) -> None:
    """Create the log directory and link that a kubelet makes for a container."""
    directory = logs / "pods" / f"{namespace}_{pod}_{UID.format(number)}" / "app"
    directory.mkdir(parents=True)
    (logs / "containers" / f"{pod}_{namespace}_app-{container_id(number)}.log").symlink_to(
        directory / "0.log"
    )
