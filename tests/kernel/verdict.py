"""Whether the kernel accepts a line that is written to one of its files."""

from kprobe_exporter.tracefs.files import MountedTracefs


def takes(files: MountedTracefs, path: str, text: str) -> bool:
    """Return whether the kernel accepts the text."""
    try:
        files.write(path, text)
    except OSError:
        return False
    return True
