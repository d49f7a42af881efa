"""Words in sentences that are printed or reported."""


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: "1 network", "1,000 networks"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
