"""Files whose English keeps the rules of `tests.support.words`; these must not break them again."""

from pathlib import Path

import pytest

from tests.support.words import broken, prose

ROOT = Path(__file__).parents[2]

CLEAN = """
docs/definitions.md
docs/recordings.md
kprobe_exporter/__init__.py
kprobe_exporter/__main__.py
kprobe_exporter/agent/__init__.py
kprobe_exporter/agent/agent.py
kprobe_exporter/agent/container_probes.py
kprobe_exporter/agent/heat.py
kprobe_exporter/agent/installer.py
kprobe_exporter/agent/otlp.py
kprobe_exporter/agent/pipeline.py
kprobe_exporter/agent/probe.py
kprobe_exporter/agent/recorded_files.py
kprobe_exporter/agent/recorder.py
kprobe_exporter/agent/serve.py
kprobe_exporter/agent/supervisor.py
kprobe_exporter/aggregate/__init__.py
kprobe_exporter/aggregate/attached_layout.py
kprobe_exporter/aggregate/interpret.py
kprobe_exporter/aggregate/matching.py
kprobe_exporter/aggregate/self_metrics.py
kprobe_exporter/aggregate/worst.py
kprobe_exporter/btf/__init__.py
kprobe_exporter/cli/__init__.py
kprobe_exporter/cli/check.py
kprobe_exporter/cli/cleanup.py
kprobe_exporter/cli/completion.py
kprobe_exporter/cli/list.py
kprobe_exporter/cli/options.py
kprobe_exporter/cli/replay.py
kprobe_exporter/cli/run.py
kprobe_exporter/cli/schema.py
kprobe_exporter/cli/trace.py
kprobe_exporter/config/__init__.py
kprobe_exporter/config/files.py
kprobe_exporter/config/kernel_aggregation.py
kprobe_exporter/config/metrics.py
kprobe_exporter/config/names.py
kprobe_exporter/config/record.py
kprobe_exporter/config/record_checks.py
kprobe_exporter/config/recordings.py
kprobe_exporter/config/schema.py
kprobe_exporter/config/sites.py
kprobe_exporter/config/yaml_source.py
kprobe_exporter/diagnose/changeable_paths.py
kprobe_exporter/diagnose/trial.py
kprobe_exporter/elf/__init__.py
kprobe_exporter/elf/budget.py
kprobe_exporter/elf/mini_debug_info.py
kprobe_exporter/export/__init__.py
kprobe_exporter/export/otlp/__init__.py
kprobe_exporter/export/otlp/traces.py
kprobe_exporter/export/stacks/__init__.py
kprobe_exporter/export/stacks/folded.py
kprobe_exporter/export/stacks/pprof.py
kprobe_exporter/grammar/__init__.py
kprobe_exporter/grammar/formula_parser.py
kprobe_exporter/grammar/lexis.py
kprobe_exporter/identity/__init__.py
kprobe_exporter/identity/pods.py
kprobe_exporter/identity/procfs.py
kprobe_exporter/identity/saved_tgids.py
kprobe_exporter/labels/__init__.py
kprobe_exporter/labels/cgroup.py
kprobe_exporter/labels/container.py
kprobe_exporter/labels/errno.py
kprobe_exporter/labels/hex.py
kprobe_exporter/labels/ifname.py
kprobe_exporter/labels/ksym.py
kprobe_exporter/labels/map.py
kprobe_exporter/labels/namespace.py
kprobe_exporter/labels/pod.py
kprobe_exporter/labels/port.py
kprobe_exporter/labels/syscall.py
kprobe_exporter/labels/user.py
kprobe_exporter/model/__init__.py
kprobe_exporter/plan/__init__.py
kprobe_exporter/plan/event_fields.py
kprobe_exporter/plan/joined.py
kprobe_exporter/plan/names.py
kprobe_exporter/probing/__init__.py
kprobe_exporter/probing/attach.py
kprobe_exporter/recording/__init__.py
kprobe_exporter/recording/describe.py
kprobe_exporter/recording/directory.py
kprobe_exporter/recording/pages.py
kprobe_exporter/recording/timeline.py
kprobe_exporter/replay/__init__.py
kprobe_exporter/replay/bodies.py
kprobe_exporter/service/__init__.py
kprobe_exporter/service/shutdown.py
kprobe_exporter/source/__init__.py
kprobe_exporter/source/binary.py
kprobe_exporter/source/walk.py
kprobe_exporter/symbols/__init__.py
kprobe_exporter/symbols/addresses.py
kprobe_exporter/symbols/listing/details.py
kprobe_exporter/symbols/resolve.py
kprobe_exporter/trace/__init__.py
kprobe_exporter/trace/count.py
kprobe_exporter/trace/emit.py
kprobe_exporter/trace/loops.py
kprobe_exporter/trace/output.py
kprobe_exporter/trace/resolve.py
kprobe_exporter/trace/table.py
kprobe_exporter/trace/text.py
kprobe_exporter/tracefs/__init__.py
kprobe_exporter/tracefs/kernel_files.py
kprobe_exporter/tracefs/leftovers.py
kprobe_exporter/tracefs/mount.py
kprobe_exporter/tracefs/ownership.py
kprobe_exporter/tracefs/poller.py
kprobe_exporter/tracefs/recording_buffers.py
kprobe_exporter/tracefs/stack_tables.py
kprobe_exporter/util/content_security.py
kprobe_exporter/util/deadline.py
kprobe_exporter/util/file_access.py
kprobe_exporter/util/progress.py
kprobe_exporter/util/protobuf.py
kprobe_exporter/util/token_bucket.py
kprobe_exporter/util/trouble.py
kprobe_exporter/web/__init__.py
kprobe_exporter/web/config/__init__.py
kprobe_exporter/web/config/context.py
kprobe_exporter/web/config/reloader.py
kprobe_exporter/web/config/sections.py
kprobe_exporter/web/handshake.py
kprobe_exporter/web/heat_map.py
kprobe_exporter/web/listen.py
kprobe_exporter/web/passwords.py
kprobe_exporter/web/probe_page.py
kprobe_exporter/web/recordings.py
kprobe_exporter/web/routes.py
kprobe_exporter/web/server.py
kprobe_exporter/web/turns.py
""".split()
"""The files that are clean. A file that is made clean goes into this list."""


@pytest.mark.parametrize("name", CLEAN)
def test_clean_file_breaks_no_rule(name: str) -> None:
    assert [line for text in prose(ROOT / name) for line in broken(text)] == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("The name is no name: write another.", "'is not a'"),
        ("The probe was told as lost.", "report, or count"),
        ("What arrived is counted.", "a noun"),
        ("Records are counted. Of text, each line is read once.", "begin with"),
        ("It takes some 30 minutes.", "about"),
        ("Then nobody reads it.", "name who"),
        ("Please leave out --json.", "omit"),
        (" ".join(["word"] * 26) + ".", "26 words"),
    ],
)
def test_broken_rule_is_reported(text: str, rule: str) -> None:
    [line] = broken(text)
    assert line.startswith(rule)


@pytest.mark.parametrize(
    "text",
    [
        "The event is no longer there, and there is no symbol.",
        "What does this kernel support?",
        " ".join(["word"] * 25) + ".",
    ],
)
def test_allowed_sentence(text: str) -> None:
    assert [*broken(text)] == []
