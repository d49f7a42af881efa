"""Run any method from its settings to a finished run directory."""

import time
from collections.abc import Sequence
from dataclasses import replace
from random import SystemRandom

from utils.driver.processes import RECORD, ModeGroup, mode_groups, process_pool, set_up, train_in
from utils.driver.reopening import joined_run, reopen_alone, shares_its_run
from utils.methods.method import Method, Problem, Scores, images_used, selection_scores, tensors_of
from utils.posteriors.files import open_posterior
from utils.posteriors.posterior import Mixture, Posterior, is_set
from utils.report.tables import Table
from utils.runs.files import last_values, read_mapping, read_records
from utils.runs.locks import lock_when_free
from utils.runs.lookup import run_directory
from utils.runs.progress import progress_bar
from utils.runs.run import Run, already_finished, open_run
from utils.runs.script import Stoppable, Stopped
from utils.settings.errors import UserError
from utils.settings.wording import plural

LEAST_CHECKPOINT_SECONDS = 0.3  # from one to the next, at least: a small network's epoch is shorter


def run_method(method: Method, config) -> None:
    """Train every mode of a method; leave its posterior, scores and figure in a run directory.

    A method with a loop of its own has `run`, which does all of it.
    """
    if hasattr(method, "run"):
        method.run(config)
        return
    together = shares_its_run(config)
    config = replace(config, resume=True) if together else config
    if already_finished(config, method.kind):
        return
    problem = set_up(method, config)
    if together:
        missing = train_together(method, config)
        if missing:
            last = plural(missing, "group")
            print(f"Other processes make the last {last}; one of them finishes the run.")
            return
        lock = lock_when_free(run_directory(config, method.kind))
    else:
        lock = reopen_alone(method, config)
    run = open_run(config, method.kind, problem.device, lock=lock, **images_used(problem.data))
    if run.finished:  # by another process, by now
        return
    posterior = train_modes(method, problem, run)
    newest = last_values(run.path("metrics.jsonl").read_text())
    scores = method.scores(problem, posterior, config, newest)
    chosen_by = selection_scores(problem, posterior, config)
    report(run, method, scores._replace(summary=scores.summary | chosen_by))


def train_modes(method: Method, problem: Problem, run: Run) -> Posterior:
    """Train all groups of modes that are not ready; return the posterior of all of them.

    With several groups, each leaves its posterior in its directory as soon as it is ready.
    """
    groups = mode_groups(method, run.config, run.directory)
    saved = run.load_checkpoint("groups", "epoch")
    if len(groups) == 1:
        return train_alone(method, problem, run, groups[0], saved)
    waiting = [group for group in groups if not group.ready]
    if run.config.jobs > 1 or not waiting:
        train_in_processes(method, run, groups)
    else:
        for group in waiting:
            group.save(train_group(method, problem, run, group.modes, saved))
    run.record_parts(core_seconds_of(groups))
    method.choose([group.place for group in groups], run.config)
    mixture = Mixture([open_posterior(group.place, fewest=0) for group in groups])
    mixture.save_kind(run.directory)
    return mixture


def train_alone(
    method: Method, problem: Problem, run: Run, group: ModeGroup, saved: tuple | None
) -> Posterior:
    """Train a run's only group, unless it is ready; return its posterior."""
    posterior = None
    if not group.ready or is_state_of(saved, group.modes):
        posterior = train_group(method, problem, run, group.modes, saved)
        group.save(posterior)
    method.choose([group.place], run.config)
    chosen_from = posterior is None or is_set(posterior)
    return open_posterior(group.place, fewest=0) if chosen_from else posterior


def train_group(
    method: Method, problem: Problem, run: Run, modes: Sequence[int], saved: tuple | None
) -> Posterior:
    """Train a group of modes, with checkpoints between steps.

    `saved` are the counters and tensors of the checkpoint that the run was begun with, if any.
    """
    config, saved_at = run.config, time.monotonic()
    state = method.init(problem, config, modes)
    if is_state_of(saved, modes):
        counters, tensors = saved
        state = state._replace(**tensors, epoch=counters["epoch"])
    with run.graceful_stop(), progress_bar(config.num_epochs, title(method, modes)) as bar:
        bar.update(state.epoch)
        while state.epoch < config.num_epochs:
            before = state.epoch
            state, records = method.step(problem, state, config)
            for record in records:
                run.log(**record)
            bar.set_postfix(shown(records), refresh=False)
            bar.update(state.epoch - before)
            due = time.monotonic() - saved_at >= LEAST_CHECKPOINT_SECONDS
            if due or run.stop_requested or state.epoch == config.num_epochs:
                counters = {"epoch": state.epoch, "first_mode": modes[0]}
                run.save_checkpoint(counters, **tensors_of(state))
                saved_at = time.monotonic()
    return method.posterior(problem, state, config)


def title(method: Method, modes: Sequence[int]) -> str:
    last = f"-{modes[-1]}" if len(modes) > 1 else ""
    return f"{method.title} {modes[0]}{last}"


def is_state_of(saved: tuple | None, modes: Sequence[int]) -> bool:
    """Return whether a checkpoint, if there is any, has the state of these modes."""
    return bool(saved) and saved[0].get("first_mode", modes[0]) == modes[0]


# ---- several processes


def train_in_processes(method: Method, run: Run, groups: Sequence[ModeGroup]) -> None:
    """Train groups in single-threaded processes, and log the last record of each."""
    ready = sum(group.ready for group in groups)
    log_groups(run, ready)
    if ready == len(groups):
        return
    with (
        process_pool(method, run.config, run.meta["matmul"]) as pool,
        run.graceful_stop(),
        progress_bar(len(groups), method.title, ready, "group") as bar,
    ):
        # A process of a session that was just killed may still hold a group for a moment.
        while (
            waiting := [group for group in groups if not group.ready]
        ) and not run.stop_requested:
            for record in filter(None, train_in(pool, waiting, lambda: run.stop_requested)):
                run.log(**record)
                ready += 1
                run.record_parts(core_seconds_of(groups))
                # Of no mode: one process that goes on begins its group again.
                run.save_checkpoint({"groups": ready, "first_mode": None})
                bar.update()
        run.stop_if_asked()


def log_groups(run: Run, ready: int) -> None:
    """Log the records of groups that other processes have made, or an earlier one before a kill."""
    logged = {record.get("group") for record in read_records(run.path("metrics.jsonl"))}
    records = [read_mapping(path) for path in sorted(run.directory.glob(f"mode-*/{RECORD}"))]
    for record in records:
        if record["group"] not in logged:
            run.log(**record)
    if records:
        run.save_checkpoint({"groups": ready, "first_mode": None})


def core_seconds_of(groups: Sequence[ModeGroup]) -> float:
    """Return what all groups that are ready have taken, whichever process and session made them."""
    records = [read_mapping(group.place / RECORD) for group in groups if group.ready]
    return sum(record.get("core_seconds", 0) for record in records)


def train_together(method: Method, config) -> int:
    """Train the groups of a run that no other process has taken; return how many are missing.

    Where locks do not reach other machines, two processes may make the same group, with the same
    bytes. That is rare, because each takes the groups in a random order.
    """
    if len(method.modes(config)) == 1:
        advice = " or a smaller --stack_size" if hasattr(config, "stack_size") else ""
        raise UserError(
            "All modes of this run are one group, which a process makes alone: leave --share out, "
            f"or give more modes{advice}."
        )
    work = Stoppable()
    with joined_run(method, config) as directory:
        groups = mode_groups(method, config, directory)
        if (directory / "DONE").exists():
            return 0
        SystemRandom().shuffle(groups)
        with process_pool(method, config, config.matmul) as pool, work.graceful_stop():
            made = True
            while made and (waiting := [group for group in groups if not group.ready]):
                with progress_bar(len(waiting), method.title, unit="group") as bar:
                    made = False
                    for record in train_in(pool, waiting, lambda: work.stop_requested):
                        made = made or record is not None
                        bar.update()
                if work.stop_requested:
                    raise Stopped
        return sum(not group.ready for group in groups)


def shown(records: list[dict]) -> dict[str, str]:
    """Return what the progress bar shows of the newest records."""
    newest = {name: value for record in records for name, value in record.items()}
    names = [name for name in ("train_loss", "elbo", "test_accuracy") if name in newest]
    return {name: f"{newest[name]:.4g}" for name in names}


def report(run: Run, method: Method, scores: Scores) -> None:
    run.save_figure("training", method.figure(run.path("metrics.jsonl")))
    headings = ["network", "test accuracy", "test NLL"]
    records = [dict(zip(headings, row, strict=True)) for row in scores.rows]
    run.log_records("test_scores", records)
    run.finish(scores.summary)
    lines = [[name, f"{100 * hits:.2f} %", f"{nll:.4f}"] for name, hits, nll in scores.rows]
    Table(headings, lines).print()
    for remark in scores.remarks:
        print(remark)
    print(f"Saved in {run.directory}")
