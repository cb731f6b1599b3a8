"""The configuration: YAML files to validated values, with every problem at its line and column.

Takes the paths of files and the available decoders. Gives one frozen ``Config``, or one ConfigError with
all problems.
May import errors, grammar, model and util.
"""

from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.load import load
from kprobe_exporter.config.schema import json_schema
from kprobe_exporter.config.values import (
    Attach,
    Config,
    Decode,
    Label,
    Metric,
    Probe,
    Settings,
    return_type,
)

__all__ = [
    "DEFAULT",
    "Attach",
    "Config",
    "Decode",
    "Label",
    "Metric",
    "Probe",
    "Settings",
    "json_schema",
    "load",
    "return_type",
]
