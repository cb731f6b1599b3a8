"""An installed agent at work in a root of its own: it starts, is scraped, and ends."""

import json
from pathlib import Path

from tests.support.agent_process import Metrics
from tests.support.debian_root import Root
from tests.support.patience import patience

CONFIG = """
global: {tracefs_instance: INSTANCE}
probes:
  - name: exec
    attach: tracepoint:sched:sched_process_exec
    fetch: {file: filename}
    metrics:
      - counter: execs_total
        help: Programs that were started.
        labels: [file]
"""

RUN = """
import json, signal, subprocess, sys, time, urllib.request

seconds, *command = sys.argv[1:]
agent = subprocess.Popen(command)
end = time.monotonic() + float(seconds)


def metrics():
    return urllib.request.urlopen("http://127.0.0.1:10435/metrics").read().decode()


text = ""
while "/bin/true" not in text:
    if agent.poll() is not None or time.monotonic() > end:
        agent.kill()
        sys.exit("no execution of /bin/true was counted")
    subprocess.run(["/bin/true"])
    try:
        text = metrics()
    except OSError:
        time.sleep(0.1)
agent.send_signal(signal.SIGTERM)
status = agent.wait(float(seconds))
print("\\n" + json.dumps({"metrics": text, "status": status}))
"""


def worked(root: Root, *command: str) -> Metrics:
    """Run ``COMMAND run`` until it has counted an event; it must end well and leave nothing in tracefs.

    Returns its metrics.
    """
    instance = f"kp_root_{root.directory.parent.name.replace('-', '_')}"[:40]
    config = root.directory / "root/config.yaml"
    config.write_text(CONFIG.replace("INSTANCE", instance))
    (root.directory / "root/run.py").write_text(RUN)
    agent = (*command, "run", "--config", "/root/config.yaml", "--web.listen-address", "127.0.0.1:10435")
    output = root.run("python3", "/root/run.py", f"{patience(20):.0f}", *agent)
    result = json.loads(output.splitlines()[-1])
    assert result["status"] == 0, output
    assert not Path(f"/sys/kernel/tracing/instances/{instance}").exists()
    return Metrics(result["metrics"])
