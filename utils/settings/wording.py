"""Words in sentences that are printed or reported."""


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: "1 network", "1,000 networks"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def megabytes(count: float) -> str:
    """Return the bytes in MB, with two digits at least: "0.012 MB", "5,120 MB"."""
    size = count / 1e6
    return f"{size:,.0f} MB" if size >= 10 else f"{size:.2g} MB"
