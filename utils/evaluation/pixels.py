"""What pixels tell: weights compared where matching has no part, and noise where data are blank.

cross_fitted    units matched on half of the pixels, weights of the other half correlated
dead_pixels     predictions on test images with noise on pixels that are zero in training
"""

from collections.abc import Iterator

from utils.evaluation.alignment import spaced_positions
from utils.evaluation.checks import fit_to, prior_network
from utils.evaluation.metrics import accuracy, calibration_error, mean_nll
from utils.evaluation.predictions import REBASED, Column
from utils.evaluation.setting import Setting
from utils.evaluation.views import Views
from utils.evaluation.weight_space import marginal_gaussian
from utils.evaluation.weight_study import correlation
from utils.networks.predictions import class_probabilities
from utils.posteriors.gaussian import Gaussian, rebase_gaussian
from utils.posteriors.mixture import is_set
from utils.posteriors.posterior import Posterior
from utils.runs.seeding import generator
from utils.symmetry.response_matching import ActivationMatcher

import numpy as np
import torch
from torch import Tensor

NOISE = (0.0, 0.25, 0.5, 1.0, 2.0)  # deviations on dead pixels, whose values lie in [0, 1]


# ---- weight by weight


def cross_fitted(setting: Setting, candidates: dict[str, Posterior], truth: str) -> dict | None:
    """Correlate μ and σ with the truth's over weights whose pixels had no part in the matching.

    Units are matched by activation on images that show every other pixel; the weights of the other
    pixels, which matching cannot make alike, are correlated. Both halves of the pixels take turns.
    "null" has networks from the prior in place of the truth's samples: it should be 0.
    """
    pixels, config = setting.network.pixel_slot, setting.config
    others = {name: each for name, each in candidates.items() if name != truth}
    if pixels is None or not others:
        return None
    samples = list(_networks(setting, candidates[truth]))
    drawn = [prior_network(setting, number).to(samples[0]) for number in range(len(samples))]
    alive = setting.data.train_images.any(0).flatten()
    found = {name: {"mean": [], "std": [], "null": []} for name in others}
    for half in (0, 1):
        shown = torch.arange(len(alive), device=alive.device) % 2 == half
        images = setting.data.train_images[: config.study_images].flatten(1) * shown
        images = images.reshape(-1, *setting.network.input_shape)
        hidden = torch.zeros(setting.network.num_weights, dtype=torch.bool, device=alive.device)
        pixels.of(hidden)[..., alive & ~shown] = True
        ours, null = (_fit_on(setting, each, images) for each in (samples, drawn))
        for name, posterior in others.items():
            theirs = _gaussian_on(setting, posterior, images)
            if theirs is None:
                found.pop(name, None)
                continue
            for part, like in (("mean", ours), ("null", null)):
                matcher = ActivationMatcher(setting.network, like.mean, images)
                moved, _ = rebase_gaussian(setting.network, theirs, matcher)
                found[name][part].append(correlation(like.mean[hidden], moved.mean[hidden]))
                if part == "mean":
                    found[name]["std"].append(correlation(like.std[hidden], moved.std[hidden]))
    return {
        name: {part: float(np.mean(values)) for part, values in parts.items()}
        for name, parts in found.items()
    }


def _networks(setting: Setting, posterior: Posterior) -> Iterator[Tensor]:
    """Yield some of a posterior's networks: evenly spaced samples, or draws."""
    count = setting.config.study_samples
    if is_set(posterior):
        drawn = (posterior[position] for position in spaced_positions(len(posterior), count))
    else:
        drawn = posterior.draw(count, generator(setting.config.seed, "limits", "networks"))
    return (weights.to(setting.device) for weights in drawn)


def _fit_on(setting: Setting, samples: list[Tensor], images: Tensor) -> Gaussian:
    """Return q_r of samples rebased to the first on these images."""
    matcher = ActivationMatcher(setting.network, samples[0], images)
    return fit_to(setting, samples, matcher, len(samples))[0].posterior


def _gaussian_on(setting: Setting, posterior: Posterior, images: Tensor) -> Gaussian | None:
    if is_set(posterior):
        return _fit_on(setting, list(_networks(setting, posterior)), images)
    gaussian = marginal_gaussian(posterior)
    return gaussian and gaussian.to(setting.device)


# ---- noise on dead pixels


def dead_pixel_noise(
    setting: Setting, candidates: dict[str, Posterior], truth: str, views: Views
) -> dict | None:
    """Return accuracy, ECE and NLL of posteriors with noise on pixels that are zero in training.

    HMC keeps the prior's weights there, so noise goes straight into its predictions (Izmailov et
    al. 2021, "Dangers of Bayesian model averaging under covariate shift").
    """
    dead = ~setting.data.train_images.any(0)
    if setting.network.pixel_slot is None or not dead.any():
        return None
    config, data = setting.config, setting.data
    some = slice(config.study_images)
    images, labels = data.test_images[some], data.test_labels[some]
    random = generator(config.seed, "limits", "dead_pixels")
    noise = torch.randn(images.shape, generator=random).to(images) * dead
    networks = {name: list(_networks(setting, posterior)) for name, posterior in candidates.items()}
    scaled = [column for column in views.fits if column.view.key == "consensus_tau"]
    for column in (Column(truth, REBASED), *scaled):
        networks[column.key] = list(_networks(setting, views.fits[column].posterior))
    rows = {}
    for name, weights in networks.items():
        rows[name] = []
        for deviation in NOISE:
            shifted = images + deviation * noise
            each = (class_probabilities(setting.network, w, shifted) for w in weights)
            average = sum(each) / len(weights)
            rows[name].append(
                {
                    "noise": deviation,
                    "accuracy": accuracy(average, labels),
                    "ece": calibration_error(average, labels),
                    "nll": mean_nll(average, labels),
                }
            )
    return {"blank_pixels": int(dead.sum()), "images": len(images), "rows": rows}
