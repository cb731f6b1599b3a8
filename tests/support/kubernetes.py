"""The versions of Kubernetes that the manifests are for, and their schemas."""

OLDEST, NEWEST = "1.25", "1.37"
"""The oldest supported Kubernetes, and the newest that has a schema."""


CUSTOM = "monitoring.coreos.com/v1"
