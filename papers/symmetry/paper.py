"""The paper as the report shows it: introduction, terms, and sections in order."""

from papers.symmetry import (
    claims,
    figures,
    mass_claims,
    quality_claims,
    quality_figures,
    tables,
)
from papers.symmetry.plan import SYMMETRY_ARTEFACTS, SYMMETRY_STEPS
from papers.symmetry.quality_tables import quality_tables
from papers.symmetry.table1 import published_tables
from utils.report.chain import mixing_warning
from utils.report.paper import Paper, RunTables, Section
from utils.report.results import Results
from utils.report.tables import Table

INTRODUCTION = (
    "Hidden units of a neural network can trade places, and a ReLU unit's incoming weights can be "
    "multiplied by any positive number if its outgoing weights are divided by it, without changing "
    "what the network computes. The posterior therefore has n! copies of each mode for n units, "
    "each stretched along a continuum of scales. The paper describes these symmetries, and asks "
    "whether training removes them by itself and how they affect approximations of the posterior."
)
TERMS = {
    "Mass": "the sum of the squared weights of a network, without biases.",
    "Minimum mass": "the smallest mass that scaling a network's units can reach without changing "
    "its function; the excess is the mass above that, relative to it.",
    "Imbalance": "incoming minus outgoing mass of a unit. Biases count here, as weight decay pulls "
    "on them, too.",
    "Projection": "scaling a network to its minimum mass while it is trained. Biases count here, "
    "so that no imbalance is left; as the mass is without them, a small excess remains.",
    "Kendall's τ": "how alike two orders of the units are: 1 if equal, −1 if reversed.",
    "NoT": "the number of transpositions: how many swaps of two units a reordering takes.",
    "χ²": "how unequal counts are, here of the units that hold the largest weight; p is the "
    "probability of a larger one if all units are alike.",
    "MMD²": "the maximum mean discrepancy, a distance between two sets of networks by a kernel; "
    "estimated without bias, so about 0 for equal distributions.",
    "NS": "MMD² of weights after scales and the order of units are removed.",
    "MI": "mutual information: the entropy of the averaged prediction minus the average entropy, "
    "in nats. It is 0 if all members predict the same.",
    "OOD": "out of distribution: images of another data set.",
    "Barrier": "how far the loss rises on the straight line between two networks after rebasin, "
    "which reorders the units of one to match the other.",
    "q_d, q_r": "the Gaussian with the mean and deviation of every weight, for networks as they "
    "are (d: direct) and after rebasin (r: rebased).",
}


def other_networks(results: Results) -> str:
    if results.preset != "quick":
        return ""
    return (
        "The quick preset has small MLPs on part of the data in place of the paper's networks. "
        "Figure 1 is the paper's; all else resembles it in kind."
    )


def posterior_tables(results: Results) -> list[Table]:
    names = ("table.json", "summary.json", "correlations.json")
    rows, summary, related = (results.json("symmetry_table", name) for name in names)
    beside = published_tables(rows, summary["network"], results.dataset)
    return [*beside, *quality_tables(rows, summary, related)]


CLAIMS = (  # in the order of the report
    claims.mixture_of_copies, claims.units_are_exchangeable,
    quality_claims.several_modes_are_better,
    quality_claims.no_correlation, quality_claims.no_correlation_beside_hmc,
    quality_claims.no_correlation_of_modes, quality_claims.no_correlation_of_modes_beside_hmc,
    quality_claims.several_modes_are_more_diverse, quality_claims.collapse_is_absent,
    mass_claims.mass_is_convex, mass_claims.training_stays_above_minimum,
    mass_claims.noise_outweighs_decay, mass_claims.batch_norm_is_degenerate,
    claims.simpler_without_symmetries, claims.shapes_match,
    mass_claims.clusters_match, mass_claims.excess_matches, claims.order_settles,
    mass_claims.imbalance_decays_as_without_noise, mass_claims.projection_changes_little,
    claims.scales_matter, quality_claims.networks_stand_in, quality_claims.plain_networks_suffice,
)  # fmt: skip
SECTIONS = (
    Section(
        "toy", "Figure 1", "Figure 1: a posterior with and without symmetries",
        (figures.toy, RunTables("symmetry_toy", tables.toy_shapes)),
    ),
    Section(
        "mass", "Figure 2", "Figure 2: mass and minimum mass",
        (figures.representation_cost, RunTables("symmetry_mass", tables.masses)),
    ),
    Section(
        "balance", "Weight decay", "Weight decay, gradient noise and the minimum mass",
        (
            figures.balance, figures.intervention,
            RunTables("symmetry_balance", tables.projection_effects),
        ),
    ),
    Section(
        "quality", "Table 1", "Table 1: the quality of approximations",
        (
            quality_figures.posterior_quality, RunTables("symmetry_table", posterior_tables),
            quality_figures.quality_and_scores, quality_figures.reliability_diagrams,
            quality_figures.confidence,
        ),
    ),
    Section(
        "diversity", "Figure 3", "Figure 3: diversity of independent networks",
        (
            quality_figures.functional_collapse,
            RunTables("symmetry_diversity", tables.pairs_of_networks),
            quality_figures.diversity_scale,
        ),
    ),
    Section(
        "marginals", "Marginals", "The corollary: all units of a layer are alike",
        (figures.largest_weights, RunTables("symmetry_marginals", tables.uniformity_tests)),
    ),
    Section(
        "order", "Order", "Section 5.2: units change their order",
        (figures.order, RunTables("symmetry_order", tables.order_changes)),
    ),
    Section(
        "compact", "q_d and q_r", "Where both papers meet: Gaussians without scales",
        (RunTables("symmetry_compact", tables.gaussians_without_scales),),
    ),
)  # fmt: skip

PAPER = Paper(
    name="symmetry",
    title="A Symmetry-Aware Exploration of Bayesian Neural Network Posteriors",
    authors="Laurent, Aldea, Franchi, 2024",
    url="https://arxiv.org/abs/2310.08287",
    heading="Symmetries of posteriors",
    introduction=INTRODUCTION,
    terms=TERMS,
    steps=SYMMETRY_STEPS,
    artefacts=SYMMETRY_ARTEFACTS,
    claims=CLAIMS,
    sections=SECTIONS,
    cautions=(other_networks, mixing_warning),
    numbers={
        "toy": lambda results: results.json("symmetry_toy", "summary.json"),
        "masses": lambda results: results.json("symmetry_mass", "summary.json"),
        "balance": lambda results: results.json("symmetry_balance", "summary.json"),
        "marginals": lambda results: results.json("symmetry_marginals", "marginals.json"),
        "posteriors": lambda results: results.json("symmetry_table", "table.json"),
        "diversity": lambda results: results.json("symmetry_diversity", "summary.json"),
        "order": lambda results: results.json("symmetry_order", "summary.json"),
        "gaussians": lambda results: results.json("symmetry_compact", "compact.json"),
    },
)
