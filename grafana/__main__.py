"""Writes every dashboard's JSON to dashboards/, where Grafana's provisioning finds it."""

from pathlib import Path

from grafana import agent, fleet, pack, postgresql, probe, profiles, time_of_threads
from grafana.frame import text

DIRECTORY = Path(__file__).parent / "dashboards"


def texts() -> dict[str, str]:
    """The content of each file below dashboards/, by its name."""
    built = [module.dashboard() for module in (fleet, probe, agent, postgresql, time_of_threads, profiles)]
    built += [pack.dashboard(name) for name in pack.TITLES]
    return {f"{dashboard.uid}.json": text(dashboard) for dashboard in built}


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, content in texts().items():
        (DIRECTORY / name).write_text(content)


if __name__ == "__main__":
    main()
