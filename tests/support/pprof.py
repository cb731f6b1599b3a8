"""Reads profiles in the format of pprof by its public description."""

import gzip
import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kprobe_exporter.export.stacks.pprof import pprof
from kprobe_exporter.model.stacks import Profile


def _message(proto: descriptor_pb2.FileDescriptorProto, name: str, fields: str) -> None:
    """Add a message whose fields are written as in a .proto file."""
    message = proto.message_type.add(name=name)
    for repeated, kind, field, number in re.findall(r"(repeated )?(\w+) (\w+) = (\d+);", fields):
        one = message.field.add(name=field, number=int(number))
        one.label = one.LABEL_REPEATED if repeated else one.LABEL_OPTIONAL
        scalar = getattr(one, f"TYPE_{kind.upper()}", None)
        one.type = one.TYPE_MESSAGE if scalar is None else scalar
        if scalar is None:
            one.type_name = f".{proto.package}.{kind}"


def _reader() -> Any:
    """Return the class of proto/profile.proto's Profile, as far as it is used, from its text."""
    proto = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="pprof", syntax="proto3")
    _message(proto, "ValueType", "int64 type = 1; int64 unit = 2;")
    _message(proto, "Sample", "repeated uint64 location_id = 1; repeated int64 value = 2;")
    _message(proto, "Line", "uint64 function_id = 1; int64 line = 2;")
    _message(
        proto, "Location", "uint64 id = 1; uint64 mapping_id = 2; uint64 address = 3; repeated Line line = 4;"
    )
    _message(proto, "Function", "uint64 id = 1; int64 name = 2; int64 system_name = 3; int64 filename = 4;")
    _message(
        proto,
        "Profile",
        "repeated ValueType sample_type = 1; repeated Sample sample = 2; repeated Location location = 4;"
        "repeated Function function = 5; repeated string string_table = 6; int64 time_nanos = 9;"
        "int64 duration_nanos = 10; ValueType period_type = 11; int64 period = 12;"
        "repeated int64 comment = 13; int64 default_sample_type = 14;",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("pprof.Profile"))


READER = _reader()


def read(profile: Profile) -> Any:
    """Return what a reader of the profile that the agent serves finds."""
    found = READER()
    found.ParseFromString(gzip.decompress(pprof(profile)))
    return found
