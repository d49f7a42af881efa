"""What both papers say together: questions of a reader, and the claims that answer them."""

from papers.compact import claims as compact
from papers.symmetry import claims as symmetry
from papers.symmetry import mass_claims, quality_claims
from utils.report.paper import Conclusion

CONCLUSIONS = (
    Conclusion(
        "What do symmetries do to a posterior?",
        (
            symmetry.mixture_of_copies,
            symmetry.units_are_exchangeable,
            mass_claims.training_stays_above_minimum,
            symmetry.scales_matter,
            compact.weights_compare,
        ),
    ),
    Conclusion(
        "Which approximation should I use?",
        (
            compact.methods_predict_alike,
            quality_claims.plain_networks_suffice,
            quality_claims.several_modes_are_better,
            quality_claims.networks_stand_in,
        ),
    ),
    Conclusion(
        "What can rebasin do, and what can it not?",
        (
            compact.barrier_vanishes,
            compact.rebasin_gives_meaning,
            compact.rebased_is_not_the_posterior,
            compact.transpositions_inform,
            compact.hmc_std_prunes,
        ),
    ),
)
