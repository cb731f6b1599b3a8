"""``python -m kprobe_exporter``: the same as the console script."""

from kprobe_exporter.cli import main

if __name__ == "__main__":
    main()
