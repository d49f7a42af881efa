"""The papers that this repository reproduces, one folder each.

A folder defines a `Paper` (utils/report/paper.py); reproduce.py and the report take what is listed
here.

    compact        Xiao, Liu and Bamler (2023): a Gaussian per weight, after removing permutations
    symmetry       Laurent, Aldea and Franchi (2024): posteriors and their symmetries; and, as a
                   paper of its own, what they did with ResNet-18

tasks.py is about running them: which of their steps are left, and with which arguments.
CONCLUSIONS are what both say together: questions of a reader, and the claims that answer them.
"""

from papers.compact import claims as compact_claims
from papers.compact.paper import PAPER as COMPACT
from papers.symmetry import claims, mass_claims, quality_claims
from papers.symmetry.paper import PAPER as SYMMETRY
from papers.symmetry.resnet import RESNET
from utils.report.paper import Conclusion

PAPERS = (COMPACT, SYMMETRY, RESNET)
CONCLUSIONS = (
    Conclusion(
        "What do symmetries do to a posterior?",
        (
            claims.mixture_of_copies,
            claims.units_are_exchangeable,
            mass_claims.training_stays_above_minimum,
            claims.scales_matter,
            compact_claims.weights_compare,
        ),
    ),
    Conclusion(
        "Which approximation should I use?",
        (
            compact_claims.methods_predict_alike,
            quality_claims.plain_networks_suffice,
            quality_claims.several_modes_are_better,
            quality_claims.networks_stand_in,
        ),
    ),
    Conclusion(
        "What can rebasin do, and what can it not?",
        (
            compact_claims.barrier_vanishes,
            compact_claims.rebasin_gives_meaning,
            compact_claims.rebased_is_not_the_posterior,
            compact_claims.transpositions_inform,
            compact_claims.hmc_std_prunes,
        ),
    ),
)
