"""Reads Prometheus' protobuf format with the protobuf library: the fields of metrics.proto that we write."""

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP

TYPES = ("counter", "gauge", "summary", "untyped", "histogram")
"""By their numbers in MetricType."""

_PACKAGE = "io.prometheus.client"

# Each message's fields by name, with their numbers and types; the type of a message begins in upper case.
_MESSAGES = {
    "LabelPair": {"name": (1, "string"), "value": (2, "string")},
    "Gauge": {"value": (1, "double")},
    "Exemplar": {"label*": (1, "LabelPair"), "value": (2, "double"), "timestamp": (3, "Timestamp")},
    "Counter": {"value": (1, "double"), "created_timestamp": (3, "Timestamp")},
    "BucketSpan": {"offset": (1, "sint32"), "length": (2, "uint32")},
    "Bucket": {
        "cumulative_count": (1, "uint64"),
        "upper_bound": (2, "double"),
        "exemplar": (3, "Exemplar"),
    },
    "Histogram": {
        "sample_count": (1, "uint64"),
        "sample_sum": (2, "double"),
        "bucket*": (3, "Bucket"),
        "schema": (5, "sint32"),
        "zero_threshold": (6, "double"),
        "zero_count": (7, "uint64"),
        "negative_span*": (9, "BucketSpan"),
        "negative_delta*": (10, "sint64"),
        "positive_span*": (12, "BucketSpan"),
        "positive_delta*": (13, "sint64"),
        "created_timestamp": (15, "Timestamp"),
    },
    "Metric": {
        "label*": (1, "LabelPair"),
        "gauge": (2, "Gauge"),
        "counter": (3, "Counter"),
        "histogram": (7, "Histogram"),
    },
    "MetricFamily": {
        "name": (1, "string"),
        "help": (2, "string"),
        "type": (3, "int32"),  # an enum on the wire is an int32
        "metric*": (4, "Metric"),
    },
}


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="metrics.proto", package=_PACKAGE, dependency=[TIMESTAMP.name])
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            one = message.field.add(name=field.rstrip("*"), number=number)
            one.label = (
                FieldDescriptorProto.LABEL_REPEATED if "*" in field else FieldDescriptorProto.LABEL_OPTIONAL
            )
            if kind[0].isupper():
                one.type = FieldDescriptorProto.TYPE_MESSAGE
                package = "google.protobuf" if kind == "Timestamp" else _PACKAGE
                one.type_name = f".{package}.{kind}"
            else:
                one.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    return file


_POOL = DescriptorPool()
_POOL.AddSerializedFile(TIMESTAMP.serialized_pb)
_POOL.AddSerializedFile(_file().SerializeToString())
_FAMILY: Any = GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.MetricFamily"))


def read(body: bytes) -> list[Any]:
    """Return the messages MetricFamily, each preceded by its length. None may have an unknown field."""
    families = []
    while body:
        length = at = 0
        while body[at] >= 0x80:
            length |= (body[at] & 0x7F) << 7 * at
            at += 1
        length |= body[at] << 7 * at
        message, body = body[at + 1 : at + 1 + length], body[at + 1 + length :]
        assert len(message) == length
        family = _FAMILY.FromString(message)
        size = family.ByteSize()
        family.DiscardUnknownFields()
        assert family.ByteSize() == size
        families.append(family)
    return families
