"""Run any method from its settings to a finished run directory."""

import dataclasses
import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from utils.data.datasets import load_dataset
from utils.methods.method import (
    Method,
    Problem,
    Scores,
    problem_of,
    refuse_batch_norm,
    tensors_of,
)
from utils.methods.settings import AugmentationConfig
from utils.networks.registry import inputs_for, network_for
from utils.posteriors.files import open_posterior
from utils.posteriors.mixture import Mixture, mode_directory
from utils.posteriors.posterior import Posterior
from utils.report.tables import print_table
from utils.runs.compute import choose_device, choose_matmul
from utils.runs.files import last_values
from utils.runs.jobs import end_with_parent
from utils.runs.progress import progress_bar
from utils.runs.run import Run, already_finished, open_run

import torch


def run_method(method: Method, config) -> None:
    """Train every mode of a method; leave its posterior, scores and figure in a run directory.

    A method with a loop of its own has `run`, which does all of it.
    """
    if hasattr(method, "run"):
        method.run(config)
        return
    if already_finished(config, method.kind):
        return
    problem = set_up(method, config)
    run = open_run(config, method.kind, problem.device)
    run.select_matmul()
    posterior = train_modes(method, problem, run)
    newest = last_values(run.path("metrics.jsonl").read_text())
    report(run, method, method.scores(problem, posterior, config, newest))


def set_up(method: Method, config) -> Problem:
    device = choose_device(config.device)
    images = load_dataset(config.dataset, config.data_dir, config.num_train).to(device)
    network = network_for(config, images)
    refuse_batch_norm(method, network)
    inputs = inputs_for(network, images)
    batches = config.batches(images, network) if isinstance(config, AugmentationConfig) else None
    return problem_of(config, network, inputs, device, batches)


def train_modes(method: Method, problem: Problem, run: Run) -> Posterior:
    """Train the groups of modes one after the other; return the posterior of all of them.

    With several groups, each leaves its posterior in a directory of its own as soon as it is ready.
    """
    groups = method.modes(run.config)
    if len(groups) == 1:
        posterior = train_group(method, problem, run, groups[0])
        posterior.save(run.directory)
        return posterior
    places = [mode_directory(run.directory, number) for number in range(len(groups))]
    waiting = [
        (place, modes)
        for place, modes in zip(places, groups, strict=True)
        if not (place / "posterior.json").exists()  # written last
    ]
    if run.config.jobs > 1:
        train_in_processes(method, run, waiting, len(groups))
    else:
        for place, modes in waiting:
            save_group(train_group(method, problem, run, modes), place)
    mixture = Mixture([open_posterior(place, fewest=1) for place in places])
    mixture.save_kind(run.directory)
    return mixture


def save_group(posterior: Posterior, place: Path) -> None:
    place.mkdir(exist_ok=True)
    posterior.save(place)


def train_group(method: Method, problem: Problem, run: Run, modes: Sequence[int]) -> Posterior:
    """Train a group of modes, with a checkpoint after every step."""
    config = run.config
    state = restored(run, method.init(problem, config, modes), modes)
    with run.graceful_stop(), progress_bar(config.num_epochs, title(method, modes)) as bar:
        bar.update(state.epoch)
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


def title(method: Method, modes: Sequence[int]) -> str:
    last = f"-{modes[-1]}" if len(modes) > 1 else ""
    return f"{method.title} {modes[0]}{last}"


def restored(run: Run, state, modes: Sequence[int]):
    """Return the state in the run's checkpoint if it is of these modes, else the given one."""
    saved = run.load_checkpoint()
    if not saved or saved[0].get("first_mode", modes[0]) != modes[0]:
        return state
    counters, tensors = saved
    return state._replace(**tensors, epoch=counters["epoch"])


# ---- several processes


def train_in_processes(
    method: Method, run: Run, waiting: list[tuple[Path, Sequence[int]]], num_groups: int
) -> None:
    """Train groups in single-threaded processes; a kill costs the groups under way."""
    run.load_checkpoint()  # keeps the records of the groups that are ready
    context = multiprocessing.get_context("spawn")
    arguments = (os.getpid(), method, dataclasses.asdict(run.config), run.meta["matmul"])
    with (
        ProcessPoolExecutor(run.config.jobs, context, begin_process, arguments) as pool,
        run.graceful_stop(),
        progress_bar(num_groups, method.title, num_groups - len(waiting), "group") as bar,
    ):
        running = {pool.submit(train_apart, *group) for group in waiting}
        while running and not run.stop_requested:
            done, running = wait(running, timeout=1, return_when=FIRST_COMPLETED)
            for each in done:
                run.log(**each.result())
                # Of no mode: one process that goes on begins its group anew.
                run.save_checkpoint({"groups": num_groups - len(running), "first_mode": None})
                bar.update()
        if run.stop_requested:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
    run.stop_if_asked()


class Worker(NamedTuple):
    """What a process that trains groups keeps from one to the next."""

    method: Method
    config: object
    problem: Problem


worker: Worker | None = None


def begin_process(parent: int, method: Method, settings: dict, matmul: str) -> None:
    """Set up a process that trains groups: one thread, and its own copy of the data."""
    global worker
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides
    torch.set_num_threads(1)
    fields = {field.name for field in dataclasses.fields(method.Config)}
    config = method.Config(**{key: value for key, value in settings.items() if key in fields})
    problem = set_up(method, config)
    choose_matmul(problem.device, matmul)
    worker = Worker(method, config, problem)


def train_apart(place: Path, modes: Sequence[int]) -> dict:
    """Train a group without checkpoints, save it, and return its last record."""
    method, config, problem = worker
    state, newest = method.init(problem, config, modes), {}
    while state.epoch < config.num_epochs:
        state, records = method.step(problem, state, config)
        newest = {name: value for record in records for name, value in record.items()}
    save_group(method.posterior(problem, state, config), place)
    return {"group": int(place.name.rpartition("-")[2]), **newest}


def shown(records: list[dict]) -> dict[str, str]:
    """Return what the progress bar shows of the newest records."""
    newest = {name: value for record in records for name, value in record.items()}
    names = [name for name in ("train_loss", "elbo", "test_accuracy") if name in newest]
    return {name: f"{newest[name]:.4g}" for name in names}


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
