"""Units of memory, and the one sentence for a number that cannot be. All sizes are bytes; GiB = 2**30 bytes."""

KiB, MiB, GiB = 2**10, 2**20, 2**30


def format_bytes(size: int) -> str:
    """Bytes as PyTorch's own messages print them: two decimals, GiB, MiB, KiB or bytes."""
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


def check_whole_number(name: str, value) -> None:
    """TypeError or ValueError, one sentence, unless `value` is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")
