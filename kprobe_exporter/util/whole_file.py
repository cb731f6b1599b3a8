"""Writing a file as a whole, or not at all."""

import secrets
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, replacing it if it exists; what was there is not opened. Raises OSError.

    So no link that another user made is followed, and a definitions file of the kernel is never truncated.
    No other user can predict the temporary name, and so prevent the writing by a file of that name.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
