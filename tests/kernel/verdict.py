"""What a kernel says to a line that is written to it."""

from kprobe_exporter.tracefs.files import MountedTracefs


def takes(files: MountedTracefs, path: str, text: str) -> bool:
    """Whether the kernel takes the text."""
    try:
        files.write(path, text)
    except OSError:
        return False
    return True
