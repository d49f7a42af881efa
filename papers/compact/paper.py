"""The paper as the report shows it: introduction, terms, and sections in order."""

from papers.compact import claims, limits, permutation_figures, weight_figures
from papers.compact.plan import COMPACT_ARTEFACTS, COMPACT_STEPS
from papers.compact.tables import (
    check_tables,
    metrics_of_tables,
    published_table1,
    score_table,
    sparsity_table,
    ways_table,
)
from papers.compact.verdicts import RULE
from utils.report import figures
from utils.report.chain import chain_tables, mixing_warning
from utils.report.paper import Paper, RunFigure, RunTables, Section
from utils.report.results import Results
from utils.report.tables import Table

CLAIMS = (  # in the order of the report
    claims.rebasin_gives_meaning, claims.rebased_is_not_the_posterior,
    claims.posterior_is_nearly_unimodal, claims.ensemble_survives, claims.methods_predict_alike,
    claims.accuracies_match,
    claims.barrier_vanishes, claims.training_keeps_transpositions, claims.barrier_grows,
    claims.transpositions_are_monotone, claims.transpositions_inform,
    claims.weights_compare, claims.hmc_std_prunes,
)  # fmt: skip
INTRODUCTION = (
    "The hidden units of a neural network can trade places, with their weights, without changing "
    "what the network computes. The posterior (the probability of weights given the data) "
    "therefore contains each network in a huge number of copies, and averages over them mix up "
    "different units: the mean and standard deviation of a weight say nothing. The paper first "
    "brings the units of all networks into one order, and asks what mean and standard deviation "
    "say then."
)
TERMS = {
    "HMC, ensemble, VI": "three ways to find weights that fit the data: networks drawn from the "
    "posterior by Hamiltonian Monte Carlo, independently trained networks, and a Gaussian fitted "
    "by variational inference.",
    "μ and σ": "mean and standard deviation of one weight over all networks of a method.",
    "Rebasin": "reorders the hidden units of a network to match those of one reference network.",
    "q_d, q_r": "the Gaussian with the μ and σ of every weight, for the networks as they are "
    "(d: direct) and after rebasin (r: rebased); μ_d and μ_r are also networks by themselves.",
    "Agreement": "the share of test images to which two predictions give the same label.",
    "Total variation (TV)": "how far the probabilities of two predictions are apart, from 0 "
    "(equal) to 1 (nothing in common).",
    "NoT": "the number of transpositions: how many swaps of two units a reordering takes.",
    "Dead pixels": "pixels that are zero in all training images, so that only the prior says "
    "anything about their weights.",
    "R-hat, ESS": "how much parts of a chain differ (1: not at all), and how many independent "
    "samples the chain is worth.",
    "Barrier": "how far the loss (cross-entropy, in nats) rises on the straight line between two "
    "networks, above the losses of the two.",
}


def quick_is_smaller(results: Results) -> str:
    if results.preset != "quick":
        return ""
    return (
        "The quick preset is a smaller network on part of the data. Its numbers are like the "
        "paper's in kind, not in value."
    )


def table1(results: Results) -> list[Table | str]:
    scores = [results.json("eval", f"{name}.json") for name in ("table1", "table1_errors")]
    names = results.json("eval", "diagnostics.json")["names"]
    published, (papers, others) = published_table1(results.dataset), metrics_of_tables()
    note = "Compared with the prediction of HMC's samples, on the test images"
    if published:
        other = " (larger network, all data)" if results.preset == "quick" else ""
        note += f"; below our values those of the paper{other}"
    return [
        score_table(*scores, published, papers, names, note=f"{note}."),
        score_table(
            *scores, {}, others, names,
            title="Beyond the paper: likelihood and calibration",
            note="ECE: expected calibration error; Brier: squared error of the probabilities. "
            "ELBO: lower bound of the log evidence of the training data, its error that of draws.",
        ),
        ways_table(results.json("eval", "diagnostics.json"), scores[0]),
        "q_d and q_r stand for networks drawn from these Gaussians, μ for the one network at the "
        "mean. “To mean”: rebased to their own mean again and again; the table of ways says if "
        "that came to rest. “By contribution”: units are matched by what they contribute to the "
        "logits; “no reference”: to the order that all samples agree on best. “τ”: deviations "
        "times a number below 1 that is chosen on training images. “REPAIR”: units of every "
        "network get the mean and deviation over images that they have in the rebased samples. "
        "“Low rank”: a Gaussian that also has covariances, those of the rebased samples in a few "
        "directions.",
    ]  # fmt: skip


def checks(results: Results) -> list[Table | str]:
    diagnostics = results.json("eval", "diagnostics.json")
    return [*check_tables(diagnostics), *limits.limit_tables(diagnostics)]


TRAINING = (
    RunFigure(
        "HMC", "chain", "HMC: the chain",
        "Per transition: acceptance probability, NLL of the training images, and test accuracy of "
        "the newest sample and of the average so far.",
        "metrics.jsonl", figures.chain,
    ),
    RunFigure(
        "ensemble", "training", "Ensemble: training",
        "Train loss of each member, and test accuracy of their average prediction, by epoch.",
        "metrics.jsonl", figures.training,
    ),
    RunFigure(
        "VI", "training", "VI: training",
        "The objective −ELBO with its two parts, and test accuracy of the one network at μ, by "
        "epoch.", "metrics.jsonl", figures.vi_training,
    ),
)  # fmt: skip

SECTIONS = (
    Section("table1", "Table 1", "Table 1: posteriors as functions", (RunTables("eval", table1),)),
    Section(
        "barriers", "Barriers and NoT", "Loss barriers and number of transpositions",
        (
            permutation_figures.loss_along_line,
            permutation_figures.barriers,
            permutation_figures.transpositions,
            permutation_figures.along_line,
        ),
    ),
    Section(
        "weights", "Weights", "Weights: HMC, ensemble and variational inference",
        (
            weight_figures.weight_means,
            weight_figures.weight_deviations,
            weight_figures.transpositions_along_chain,
        ),
    ),
    Section(
        "pruning", "Pruning", "Pruning",
        (
            weight_figures.sigma_histograms,
            weight_figures.pruning,
            weight_figures.pruning_criteria,
            RunTables(
                "eval_pruning", lambda r: [sparsity_table(r.json("eval_pruning", "pruning.json"))]
            ),
        ),
    ),
    Section("training", "Training", "Chains and training", TRAINING),
    Section(
        "checks", "Checks", "Checks, and what the paper does not report",
        (RunTables("eval", checks), limits.noise_on_dead_pixels),
    ),
    Section(
        "chain", "Diagnostics", "Diagnostics of the chain",
        (RunTables("HMC", lambda r: chain_tables(r.runs["HMC"])),),
    ),
)  # fmt: skip

PAPER = Paper(
    name="compact",
    title="A Compact Representation for Bayesian Neural Networks By Removing Permutation Symmetry",
    authors="Xiao, Liu, Bamler, 2023",
    url="https://arxiv.org/abs/2401.00611",
    heading="Compact posterior of a Bayesian neural network",
    introduction=INTRODUCTION,
    terms=TERMS,
    steps=COMPACT_STEPS,
    artefacts=COMPACT_ARTEFACTS,
    claims=CLAIMS,
    rule=RULE,
    sections=SECTIONS,
    cautions=(quick_is_smaller, mixing_warning),
    numbers={
        "table1": lambda results: results.json("eval", "table1.json"),
        "table1_errors": lambda results: results.json("eval", "table1_errors.json"),
        "evaluation": lambda results: results.json("eval", "diagnostics.json"),
        "pruning": lambda results: results.json("eval_pruning", "pruning.json"),
        "chain": lambda results: results.json("HMC", "diagnostics.json")["groups"],
    },
)
