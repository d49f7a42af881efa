"""The papers that this repository reproduces, one folder each.

A folder defines a `Paper` (utils/report/paper.py); reproduce.py and the report take what is listed
here.

    compact        Xiao, Liu and Bamler (2023): a Gaussian per weight, after removing permutations
    symmetry       Laurent, Aldea and Franchi (2024): posteriors and their symmetries; and, as a
                   paper of its own, what they did with ResNet-18

tasks.py is about running them: which of their steps are left, and with which arguments.
conclusions.py is what both say together: questions of a reader, advice, and the claims it rests on.
"""

from papers.compact.paper import PAPER as COMPACT
from papers.conclusions import CONCLUSIONS as CONCLUSIONS
from papers.symmetry.paper import PAPER as SYMMETRY
from papers.symmetry.resnet import RESNET

PAPERS = (COMPACT, SYMMETRY, RESNET)
