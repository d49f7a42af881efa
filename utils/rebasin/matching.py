"""Find the permutation that aligns a network's hidden units to those of a reference.

A matcher is built for a reference and called with the weights of the network to be moved:

    ActivationMatcher   units that respond alike to the images: max Σ_i Σ_n a_i(n) b_π(i)(n)
    ContributionMatcher units that contribute alike to the logits of the images
    WeightMatcher       units with like weights, incoming, bias and outgoing: max ⟨W_ref, π(W)⟩,
                        which is min ‖W_ref − π(W)‖ (Ainsworth et al. 2023, Git Re-Basin)
    CosineMatcher       units whose incoming weight vectors point the same way

Units of tanh are matched together with their signs: all these similarities are linear in a unit's
sign, so the best sign is that of the similarity. Contributions do not depend on it; there the sign
is that of Σ_n a_i(n) b_π(i)(n).
"""

from utils.networks.network import Network
from utils.rebasin.assignment import Matcher
from utils.rebasin.response_matching import ActivationMatcher, ContributionMatcher
from utils.rebasin.weight_matching import CosineMatcher, WeightMatcher
from utils.settings.errors import UserError

from torch import Tensor

MATCHINGS = ("activation", "contribution", "weight", "cosine")
RESPONSES = {"activation": ActivationMatcher, "contribution": ContributionMatcher}


def make_matcher(method: str, network: Network, reference: Tensor, images: Tensor) -> Matcher:
    """Return the matcher of one of MATCHINGS; the first two of them look at the images."""
    if method not in MATCHINGS:
        raise UserError(f"There is no matching by {method!r}; choose from {', '.join(MATCHINGS)}.")
    if method in RESPONSES:
        return RESPONSES[method](network, reference, images)
    return {"weight": WeightMatcher, "cosine": CosineMatcher}[method](network, reference)
