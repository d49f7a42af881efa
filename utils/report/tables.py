"""Tables of text, which scripts print and the report shows."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Headings and rows of text. What follows a line break in a cell is shown less prominently."""

    head: list[str]
    rows: list[list[str]]
    title: str = ""
    note: str = ""

    def print(self) -> None:
        """Print the table in aligned columns, with its title and note above it."""
        print()
        for line in filter(None, (self.title, self.note)):
            print(line)
        rows = [[inline(cell) for cell in row] for row in (self.head, *self.rows)]
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  ".join(cells).rstrip())

    def markdown(self) -> str:
        """Return headings and rows in Markdown."""
        head, *rows = ("".join(f"| {cell} " if cell else "| " for cell in row) + "|"
                       for row in (self.head, *self.rows))  # fmt: skip
        return "\n".join([head, "|---" * len(self.head) + "|", *rows])


def inline(cell: str) -> str:
    """Return a cell of two lines as one: "0.80\npaper 0.82" becomes "0.80 (paper 0.82)"."""
    first, _, second = cell.partition("\n")
    return f"{first} ({second})" if second else first


def number(value: float | None, digits: int, sign: str = "") -> str:
    """Format a number with a true minus sign; None, infinity and NaN become a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value + 0.0:{sign}.{digits}f}".replace("-", "−")  # −0.0 + 0.0 is 0.0


def with_error(
    value: float | None, error: float | None, digits: int, factor: float = 1, sign: str = ""
) -> str:
    """Format a number ± its standard error, both times a factor; None becomes a dash."""
    scaled, spread = (each if each is None else factor * each for each in (value, error))
    return f"{number(scaled, digits, sign)} ± {number(spread, digits)}"


def with_known_error(
    value: float | None, error: float | None, digits: int, factor: float = 1, sign: str = ""
) -> str:
    """Format the same, or the number alone if it is None or its error is."""
    if value is None or error is None:
        return number(value if value is None else factor * value, digits, sign)
    return with_error(value, error, digits, factor, sign)
