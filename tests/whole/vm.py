"""The VM with the agent, and a Prometheus on this machine that scrapes it as it would in a cluster."""

import compileall
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.patience import eventually, patience
from tests.support.prometheus_server import Prometheus, prometheus
from tests.vm import ROOT, boot
from tests.vm.debian import promtool
from tests.vm.kernels import MAIN
from tests.vm.machines import Machine
from tests.vm.process import Child

DEPLOY = ROOT / "deploy/prometheus"
NODE = "node-1"
LIMIT, READY = 900, 600
"""Seconds for the emulated guest beside another one: in total, and until it is ready; it needs a third."""


def needs_a_vm() -> None:
    """Skip a test without the tools that boot a VM; under CI it fails instead."""
    missing = [tool for tool in ("qemu-system-x86_64", "vng") if not shutil.which(tool, path=_path())]
    if missing and os.environ.get("CI"):
        pytest.fail(f"there is no {missing[0]}")
    if missing:
        pytest.skip(f"no {missing[0]}: `make test` installs it")


@contextmanager
def whole(directory: Path, ready: Callable[[Prometheus], bool]) -> Iterator[Prometheus]:
    """Run both. Yields the server as soon as it is ``ready``."""
    for package in ("kprobe_exporter", "tests"):
        compileall.compile_dir(ROOT / package, quiet=2)  # the guest cannot write bytecode
    port = boot.free_port(boot.GUEST_PORT)
    machine = directory / "vm"
    machine.mkdir()
    command = [sys.executable, "-m", "tests.whole.guest"]
    limit = round(patience(LIMIT))
    # One CPU: on two that one thread emulates in turns, each wait for the interpreter's lock takes a turn,
    # and a scrape of an agent with all packs 20 s.
    guest = boot.Guest(MAIN, command, machine, limit, port=port, machine=Machine("single", cpus="1"))
    stop = threading.Event()
    child = Child("whole", boot.command(guest), machine / "log", limit + 30, boot.environment(), stop)
    running = threading.Thread(target=child.run)
    running.start()
    try:
        binary = promtool().with_name("prometheus")
        config = _config(port, directory)
        with prometheus(binary, directory, config, "--enable-feature=exemplar-storage") as server:
            eventually(lambda: ready(server) or not running.is_alive(), READY)
            assert running.is_alive(), (machine / "log").read_text(errors="replace")
            yield server
    finally:
        stop.set()
        running.join()


def quick_rules() -> dict[str, Any]:
    """The rules unchanged, except that each condition need only last 2 s."""
    rules: dict[str, Any] = yaml.safe_load((DEPLOY / "rules.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            if rule.get("for", "0s") != "0s":
                rule["for"] = "2s"
    return rules


def _config(port: int, directory: Path) -> dict[str, Any]:
    """The configuration for Kubernetes, with two pods listed instead of discovered by its API."""
    rules = directory / "rules.yaml"
    rules.write_text(yaml.safe_dump(quick_rules()))
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus-kubernetes.yml").read_text())
    # A scrape may take as long as its interval. An emulated agent takes some seconds, beside another guest.
    config["global"] = {"scrape_interval": "15s", "scrape_timeout": "15s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(rules)]
    (job,) = config["scrape_configs"]
    del job["kubernetes_sd_configs"]
    pod = {"__meta_kubernetes_pod_phase": "Running", "__meta_kubernetes_pod_node_name": NODE}
    name = "__meta_kubernetes_pod_container_port_name"
    job["static_configs"] = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {**pod, name: "metrics"}},
        {"targets": ["127.0.0.1:9"], "labels": {**pod, name: "debug"}},
    ]
    return config


def _path() -> str:
    return boot.environment()["PATH"]
