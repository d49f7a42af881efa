"""The pictures of a report: what each shows, in which section, and the files that runs left."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from utils.report.results import Missing, Results
from utils.runs.files import write_atomically

from PIL import Image


@dataclass(frozen=True)
class Picture:
    """A figure of a run, and what it shows."""

    title: str
    kind: str  # of the run
    name: str  # of the file, without its suffix
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of the report that shows pictures."""

    anchor: str  # its address within the page
    short: str  # its name in the list of sections
    title: str
    pictures: tuple[Picture, ...]


BARRIERS = (
    Picture(
        "Figure 2: the loss between two networks over training",
        "net_matching", "loss_along_line",
        "Train and test loss of W_λ = (1 − λ) W₀ + λ W₁ after every epoch, with the second "
        "network as it is (left), and rebased to the first by activation and by weight. White "
        "lines join points of equal loss. A ridge in the middle is a loss barrier.",
    ),
    Picture(
        "The barrier that each way of rebasin leaves",
        "net_matching", "barriers",
        "Test loss and error barriers over training, the largest over λ, error in percentage "
        "points; and NoT of the rebasin beside that of a random permutation.",
    ),
    Picture(
        "Figure 3, left: networks that start as permuted copies of each other",
        "transpositions", "transpositions",
        "NoT found by rebasin, weight distance and loss barrier at λ = ½ after training, each "
        "against the NoT planted at initialisation.",
    ),
    Picture(
        "Figure 3, right: on the line between two networks",
        "net_matching", "along_line",
        "Weight distance and NoT of W_λ against W₀, before the first and after the last epoch.",
    ),
)  # fmt: skip

WEIGHTS = (
    Picture(
        "Figure 4: means of weights", "eval", "weight_pairs_mean",
        "μ of each weight by one method against another, before rebasin (top) and after it "
        "(bottom), as densities. Weights of dead pixels are left out.",
    ),
    Picture(
        "Figure 4: standard deviations of weights", "eval", "weight_pairs_std",
        "The same of σ. What is below 10⁻⁶ is drawn as that.",
    ),
    Picture(
        "NoT along the chain", "eval", "transpositions_along_chain",
        "NoT of the rebasin of each HMC sample to the first, beside the same rebasin of "
        "networks drawn from the prior, and random permutations.",
    ),
)  # fmt: skip

PRUNING = (
    Picture(
        "Figure 5, left: σ before and after rebasin", "eval_pruning", "sigma_histograms",
        "Histograms of σ over the weights. The prior's σ is 1.",
    ),
    Picture(
        "Figure 5, right: accuracy of pruned networks", "eval_pruning", "pruning",
        "Test accuracy when only the weights of lowest σ are kept and the others are zero, of "
        "mean networks and of single ones; below, without the weights of dead pixels.",
    ),
    Picture(
        "By other orders", "eval_pruning", "pruning_criteria",
        "Accuracy of each method's mean network, pruned by σ, |μ|, |μ|/σ and at random.",
    ),
)  # fmt: skip

TRAINING = (
    Picture(
        "HMC: the chain", "HMC", "chain",
        "Per transition: acceptance probability, NLL of the training images, and test accuracy "
        "of the newest sample and of the average so far.",
    ),
    Picture(
        "Ensemble: training", "ensemble", "training",
        "Train loss of each member, and test accuracy of their average prediction, over "
        "epochs.",
    ),
    Picture(
        "VI: training", "VI", "training",
        "The objective, −ELBO, with its two parts, and test accuracy of the one network at μ, "
        "over epochs.",
    ),
)  # fmt: skip

BROKEN_IMAGE = (OSError, SyntaxError)  # what PIL raises where a PNG is cut short, or is none

SECTIONS = (
    Section("barriers", "Barriers and NoT", "Loss barriers and number of transpositions", BARRIERS),
    Section("weights", "Weights", "Weights: HMC, ensemble and variational inference", WEIGHTS),
    Section("pruning", "Pruning", "Pruning", PRUNING),
    Section("training", "Training", "Chains and training", TRAINING),
)


def read_images(results: Results) -> dict[Picture, bytes]:
    """The pictures that runs have left so far and that can be read, as compressed PNGs."""
    images = {}
    for picture in (picture for section in SECTIONS for picture in section.pictures):
        try:
            images[picture] = _compressed(results.runs[picture.kind].path(f"{picture.name}.png"))
        except (Missing, *BROKEN_IMAGE):
            continue
    return images


def _compressed(path: Path) -> bytes:
    """A PNG in 256 colours, a third of its size and to the eye the same."""
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        buffer = BytesIO()
        small.save(buffer, format="png", optimize=True)
        return buffer.getvalue()


def write_images(images: dict[Picture, bytes], directory: Path) -> None:
    """As files, and none of what an earlier report had and this one has not."""
    directory.mkdir(exist_ok=True)
    named = {directory / f"{p.kind}_{p.name}.png": data for p, data in images.items()}
    for path, data in named.items():
        write_atomically(path, lambda file, data=data: file.write(data))
    for left_over in set(directory.glob("*.png")) - named.keys():
        left_over.unlink()
