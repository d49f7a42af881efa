"""Run any method from its settings to a finished run directory."""

import json
from collections.abc import Sequence
from pathlib import Path

from utils.data.datasets import load_pixels
from utils.methods.method import Method, Problem, Scores, tensors_of
from utils.networks.registry import network_for
from utils.posteriors.files import open_posterior
from utils.posteriors.mixture import Mixture, mode_directory
from utils.posteriors.posterior import Posterior
from utils.report.tables import print_table
from utils.runs.compute import choose_device
from utils.runs.progress import progress_bar
from utils.runs.run import Run, open_run


def run_method(method: Method, config) -> None:
    """Train every mode of a method; leave its posterior, scores and figure in a run directory."""
    problem = set_up(method, config)
    run = open_run(config, method.kind, problem.device)
    if run.finished:
        return
    run.select_matmul()
    posterior = train_modes(method, problem, run)
    newest = newest_values(run.path("metrics.jsonl"))
    report(run, method, method.scores(problem, posterior, config, newest))


def set_up(method: Method, config) -> Problem:
    device = choose_device(config.device)
    data = load_pixels(config.dataset, config.data_dir, config.num_train).to(device)
    network = network_for(config, data)
    return Problem(network, data, method.prior(config, data), device)


def train_modes(method: Method, problem: Problem, run: Run) -> Posterior:
    """Train the groups of modes one after the other; return the posterior of all of them.

    With several groups, each leaves its posterior in a directory of its own as soon as it is ready.
    """
    groups = method.modes(run.config)
    places = [mode_directory(run.directory, number) for number in range(len(groups))]
    if len(groups) == 1:
        places = [run.directory]
    for place, modes in zip(places, groups, strict=True):
        if len(groups) > 1 and (place / "posterior.json").exists():
            continue  # this group was ready when the run was interrupted
        posterior = train_group(method, problem, run, modes)
        place.mkdir(exist_ok=True)
        posterior.save(place)
    if len(groups) == 1:
        return posterior
    mixture = Mixture([open_posterior(place) for place in places])
    mixture.save_kind(run.directory)
    return mixture


def train_group(method: Method, problem: Problem, run: Run, modes: Sequence[int]) -> Posterior:
    config = run.config
    state = restored(run, method.init(problem, config, modes), modes)
    title = method.title if len(modes) == 1 else f"{method.title}, {len(modes)} networks"
    with run.graceful_stop(), progress_bar(config.num_epochs, title, state.epoch) as bar:
        while state.epoch < config.num_epochs:
            before = state.epoch
            state, records = method.step(problem, state, config)
            for record in records:
                run.log(**record)
            bar.set_postfix(shown(records), refresh=False)
            bar.update(state.epoch - before)
            counters = {"epoch": state.epoch, "first_mode": modes[0]}
            run.save_checkpoint(counters, **tensors_of(state))
    return method.posterior(problem, state, config)


def restored(run: Run, state, modes: Sequence[int]):
    """Return the state in the run's checkpoint if it is of these modes, else the given one."""
    shapes = {name: each.shape for name, each in tensors_of(state).items()}
    saved = run.load_checkpoint(**shapes)
    if not saved or saved[0].get("first_mode", modes[0]) != modes[0]:
        return state
    counters, tensors = saved
    return state._replace(**tensors, epoch=counters["epoch"])


def shown(records: list[dict]) -> dict[str, str]:
    """Return what the progress bar shows of the newest records."""
    newest = {name: value for record in records for name, value in record.items()}
    names = [name for name in ("train_loss", "elbo", "test_accuracy") if name in newest]
    return {name: f"{newest[name]:.4g}" for name in names}


def newest_values(metrics: Path) -> dict:
    """Return the last value of everything that was recorded."""
    values = {}
    for line in metrics.read_text().splitlines():
        values |= json.loads(line)
    return values


def report(run: Run, method: Method, scores: Scores) -> None:
    run.save_figure("training", method.figure(run.path("metrics.jsonl")))
    headings = ["network", "test accuracy", "test NLL"]
    run.log_table("test_scores", headings, scores.rows)
    run.finish(scores.summary)
    lines = [[name, f"{100 * hits:.2f} %", f"{nll:.4f}"] for name, hits, nll in scores.rows]
    print()
    print_table([headings, *lines])
    for remark in scores.remarks:
        print(remark)
    print(f"Saved in {run.directory}")
