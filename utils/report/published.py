"""Networks and predictions for others to use: their scores, and what their cards say of them."""

from pathlib import Path

from utils.data.datasets import Dataset
from utils.evaluation.metrics import accuracy, mean_nll, scores
from utils.evaluation.predictions import PartPredictions, predict_samples
from utils.networks.predictions import class_probabilities
from utils.networks.registry import inputs_for
from utils.posteriors.files import open_posterior
from utils.report.card import NetworkSet, preparation
from utils.report.chain import chain_facts, chain_sections, is_chain
from utils.runs.files import read_mapping
from utils.runs.lookup import PastRun
from utils.runs.progress import progress_bar

import torch
from torch import Tensor

ONE_CHAIN_PARTS = 10  # that a single chain's predictions are kept in
OWN_SCORES = ("sample_accuracy", "nll", "ece", "brier")  # of HMC's predictions, for the card

# ---- a set of networks


def describe_set(
    folder: Path, name: str, run: PastRun, dtype: torch.dtype, licence: str, data: Dataset | None
) -> NetworkSet:
    """Return what the card says of the networks of a run, as they are in a folder.

    Their scores, on the run's data set, go to networks.csv in this folder.
    """
    posterior, summary = open_posterior(folder), read_mapping(run.directory / "summary.json")
    networks = NetworkSet(
        name, posterior.network, len(posterior), dtype, licence, run.config, run.meta, run.dataset,
        summary.get("failed"),
    )  # fmt: skip
    if data is None:
        return networks
    hits, nlls, average = score_networks(posterior, inputs_for(posterior.network, data))
    save_scores(folder / "networks.csv", open_posterior(run.path).known("modes"), hits, nlls)
    normalisation = data.normalisation(posterior.network.normalisation)
    if is_chain(run):
        facts = chain_facts(run, posterior.network, data)
        networks = networks._replace(sampling=chain_sections(facts))
    return networks._replace(
        inputs=preparation(posterior.network, run.dataset, normalisation),
        accuracies=hits, nlls=nlls, average=average,
    )  # fmt: skip


def score_networks(posterior, data: Dataset) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """Return accuracy [K] and NLL [K] of every network, and both of their average prediction."""
    network, labels = posterior.network, data.test_labels
    rows, total = [], 0
    with progress_bar(len(posterior), "scoring", unit="network", items=posterior) as bar:
        for weights in bar:
            probabilities = class_probabilities(network, weights, data.test_images)
            total = total + probabilities
            rows.append((accuracy(probabilities, labels), mean_nll(probabilities, labels)))
    hits, nlls = torch.tensor(rows, dtype=torch.float64).unbind(1)
    average = total / len(posterior)
    return hits, nlls, (accuracy(average, labels), mean_nll(average, labels))


def save_scores(path: Path, numbers, hits: Tensor, nlls: Tensor) -> None:
    """Save each network's scores, with its number in training, or its position if it had none."""
    numbers = range(len(hits)) if numbers is None else numbers
    lines = ["network,number,test_accuracy,test_nll"]
    for number, hit, nll in zip(numbers, hits.tolist(), nlls.tolist(), strict=True):
        lines.append(f"{len(lines) - 1},{int(number)},{hit:.6g},{nll:.6g}")
    path.write_text("\n".join([*lines, ""]))


# ---- predictions of HMC


def predict_chains(posterior, images: Tensor) -> PartPredictions:
    """Predict with the samples of each chain, or of each tenth if there is one chain."""
    count, chains = len(posterior), posterior.num_chains
    num_parts = chains if chains > 1 else ONE_CHAIN_PARTS
    with progress_bar(count, "predicting", unit="sample", items=posterior) as samples:
        return predict_samples(posterior.network, samples, count, images, num_parts)


def prediction_facts(posterior, predictions: PartPredictions, labels: Tensor) -> dict:
    """Return what the card says of the predictions of these chains, besides `chain_facts`."""
    own = scores(predictions.compared(predictions, labels))
    num_parts, num_test, num_classes = predictions.parts.shape
    return {
        "part": "chain" if posterior.num_chains > 1 else "tenth of the chain",
        "num_parts": num_parts, "num_test": num_test, "num_classes": num_classes,
        "scores": {name: own[name] for name in OWN_SCORES},
    }  # fmt: skip
