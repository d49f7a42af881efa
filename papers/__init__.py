"""The papers that this repository reproduces, one folder each.

A folder defines a `Paper` (utils/report/paper.py); reproduce.py and the report take what is listed
here.

    compact    Xiao, Liu and Bamler (2023): a Gaussian per weight, after removing permutations
"""

from papers.compact.paper import PAPER as COMPACT

PAPERS = (COMPACT,)
