"""The resource has attributes of the host and the kernel; the environment overrides them."""

import os

import pytest
from opentelemetry.sdk.resources import Resource

from kprobe_exporter import __version__
from kprobe_exporter.export.otlp.resource import resource

SYSTEM = os.uname_result(("Linux", "pod-1", "6.12.0-amd64", "#1 SMP Debian", "x86_64"))


def test_what_is_always_there() -> None:
    assert (
        resource({}, SYSTEM).attributes.items()
        >= {
            "service.name": "kprobe_exporter",
            "service.version": __version__,
            "host.name": "pod-1",
            "os.type": "linux",
            "os.version": "6.12.0-amd64",
            "os.description": "Linux 6.12.0-amd64 #1 SMP Debian x86_64",
            "telemetry.sdk.language": "python",
        }.items()
    )
    assert "k8s.node.name" not in resource({}, SYSTEM).attributes


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"NODE_NAME": "node-7"}, {"k8s.node.name": "node-7", "host.name": "node-7"}),
        ({"K8S_NODE_NAME": "a", "NODE_NAME": "b"}, {"k8s.node.name": "a"}),
        ({"NODE_NAME": " "}, {"host.name": "pod-1"}),
        ({"OTEL_SERVICE_NAME": "mine"}, {"service.name": "mine"}),
        ({"OTEL_SERVICE_NAME": ""}, {"service.name": "kprobe_exporter"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs,a=b"}, {"service.name": "theirs", "a": "b"}),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs", "OTEL_SERVICE_NAME": "mine"},
            {"service.name": "mine"},
        ),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": " host.name = h , x = a%2Cb%3D%20c ,, y=1=2", "NODE_NAME": "n"},
            {"host.name": "h", "x": "a,b= c", "y": "1=2", "k8s.node.name": "n"},
        ),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=\udcff"}, {"a": "\ufffd"}),
    ],
)
def test_what_the_environment_says(environ: dict[str, str], expected: dict[str, str]) -> None:
    assert resource(environ, SYSTEM).attributes.items() >= expected.items()


def test_what_it_has_wrong_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    found = resource({"OTEL_RESOURCE_ATTRIBUTES": "a,=b,c=d"}, SYSTEM).attributes
    assert found["c"] == "d"
    assert not {"a", ""} & found.keys()
    assert [record.getMessage() for record in caplog.records] == [
        "entry 1 of OTEL_RESOURCE_ATTRIBUTES is not a KEY=VALUE: it is ignored",
        "entry 2 of OTEL_RESOURCE_ATTRIBUTES is not a KEY=VALUE: it is ignored",
    ]


def test_it_is_the_same_as_the_sdks() -> None:
    """The resource equals the SDK's and has the same hash, only computed earlier."""
    ours = resource({}, SYSTEM)
    theirs = Resource(ours.attributes)
    assert (hash(ours), ours) == (hash(theirs), theirs)
    assert ours != resource({"A": "b", "OTEL_SERVICE_NAME": "other"}, SYSTEM)
    assert ours == resource({}, SYSTEM)


def test_the_real_ones() -> None:
    assert resource().attributes["os.type"] == "linux"
