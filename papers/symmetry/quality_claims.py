"""What the paper says about quality and diversity of posteriors, judged by our results.

The criteria are ours, stated before any run: the paper gives no thresholds.
"""

from utils.report.paper import FAILS, HOLDS, PARTLY, Finding, claim
from utils.report.results import Results

WEAK = 0.3  # a rank correlation within ± this is weak


# ---- Figure 3


@claim(
    "Functional collapse is absent, yet independent networks differ by nearly the same amount in "
    "distribution, by more varied amounts out of it, and the two are only weakly related.",
    source="Section 5.1, Figure 3",
    criterion="three parts: less than 1 % of all pairs have a mutual information as low as copies "
    "of one network have on average; the relative deviation, without the noise of finite images, "
    "is smaller in distribution than out of it; and the 95 % interval of the rank correlation lies "
    f"within ±{WEAK}. Holds if all are met, in part if one or two",
    kinds=("symmetry_diversity",),
)
def collapse_is_absent(results: Results) -> Finding:
    summary = results.json("symmetry_diversity", "summary.json")
    inside, outside, rho = (summary[name] for name in ("inside", "outside", "correlation"))
    copies = summary["groups"]["copies"]["inside"]
    name = "relative_deviation_without_image_noise"
    met = (
        inside["quantiles"][1] > copies,
        inside[name] < outside[name],
        -WEAK < rho["low"] <= rho["high"] < WEAK,
    )
    return Finding(
        HOLDS if all(met) else PARTLY if any(met) else FAILS,
        f"{summary['networks']} networks: mutual information {inside['mean']:.4f} nats in "
        f"distribution (disagreement {100 * inside['disagreement']:.1f} %), {outside['mean']:.4f} "
        f"on {summary['ood']} ({100 * outside['disagreement']:.1f} %); copies of one network "
        f"{copies:.4f}, below the 1 % quantile {inside['quantiles'][1]:.4f} of all pairs: "
        f"{'yes' if met[0] else 'no'}. Relative deviation {100 * inside['relative_deviation']:.1f} "
        f"% and {100 * outside['relative_deviation']:.1f} %; without the noise of finite images "
        f"{100 * inside[name]:.1f} % and {100 * outside[name]:.1f} %. ρ = {rho['rho']:.2f} "
        f"({rho['low']:.2f} to {rho['high']:.2f}, Mantel p = {rho['p']:.3f}).",
    )
