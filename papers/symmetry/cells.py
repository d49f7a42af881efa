"""The cells of symmetry_balance.py's grid, without those whose training diverged."""


def converged(cells: list[dict]) -> list[dict]:
    """Return the cells that did not diverge."""
    return [cell for cell in cells if not cell.get("diverged")]


def pairs(cells: list[dict]) -> list[tuple[dict, dict]]:
    """Return SGD's cells as usual and with projection; neither of a pair diverged."""
    usual, projected = (
        [c for c in cells if c["optimizer"] == "SGD" and c["projected"] == is_projected]
        for is_projected in (False, True)
    )
    return [pair for pair in zip(usual, projected, strict=True) if len(converged(pair)) == 2]


def remark(cells: list[dict]) -> str:
    """Say how many cells diverged; nothing if none did."""
    count = len(cells) - len(converged(cells))
    return f" Training diverged in {count} of {len(cells)} cells, which are left out." * (count > 0)
