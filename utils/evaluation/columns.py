"""Columns of the table: a posterior, and the view of it that is scored."""

from collections.abc import Iterable
from typing import NamedTuple


class View(NamedTuple):
    key: str  # how the keys of its columns end, in files
    title: str


SAMPLE = View("sample", "{}")  # the weight vectors themselves
DIRECT = View("direct", "{} q_d")  # a Gaussian fitted to them
REBASED = View("rebased", "{} q_r")  # the same after they are rebased to the first
MEAN_REFERENCE = View("mean_reference", "{} q_r, to mean")  # rebased to their mean
LOW_RANK = View("low_rank", "{} q_r, low rank")  # a Gaussian with covariances
OWN = View("", "{} q")  # the distribution that a method fits

VIEWS = (SAMPLE, DIRECT, REBASED, MEAN_REFERENCE, LOW_RANK, OWN)  # as tables show them


class Column(NamedTuple):
    method: str  # the posterior's name
    view: View

    @property
    def key(self) -> str:
        """Return what files call the column."""
        return "_".join(filter(None, (self.method, self.view.key)))

    def title(self, names: dict[str, str]) -> str:
        """Return what tables call the column; `names` says what posteriors are called."""
        return self.view.title.format(names[self.method])


def columns_of(methods: Iterable[str]) -> dict[str, Column]:
    """Return all columns that these posteriors may have by key, in the order of tables."""
    columns = (Column(method, view) for method in methods for view in VIEWS)
    return {column.key: column for column in columns}
