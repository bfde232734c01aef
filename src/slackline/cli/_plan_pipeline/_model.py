"""A model cut into stages for `slackline plan pipeline --model`: input, text and JSON."""

import time
from collections.abc import Mapping
from pathlib import Path

from slackline.cli._plan_pipeline._report import in_ms, table
from slackline.errors import UsageError
from slackline.plan.partition import Cluster, Model, Partition, Profile, parse_model, partition
from slackline.plan.pipeline import PS_PER_MS
from slackline.units import count, show_percent, show_time

__all__ = ["cut_model", "partition_report", "partition_text"]

Row = dict[str, object]


def cut_model(
    model: Path,
    cluster: Path | None,
    stages: int | None,
    microbatches: int | None,
    effort: float,
    others: Mapping[str, object],
) -> tuple[Partition, float]:
    """Cut the model of the files; return the partition and the seconds that planning took.

    `others` has the values of the options that do not go with --model. Raises UsageError if one of
    them is set, and for a wrong value.
    """
    for name, value in others.items():
        if value:
            raise UsageError(
                f"{name} does not go with --model, which chooses times, caps and order"
            )
    if microbatches is None:
        raise UsageError("--microbatches is needed with --model")
    profile, hosts = _read(model, cluster)
    start = time.perf_counter()
    found = partition(profile, hosts, stages, microbatches, effort=effort)
    return found, time.perf_counter() - start


def partition_report(found: Partition, seconds: float) -> Row:
    """Return a partition as JSON values."""
    return {
        "stages": _stages(found),
        "microbatches": found.scenario.microbatches,
        "iteration_ms": found.iteration_ps / PS_PER_MS,
        "lower_bound_ms": found.lower_bound_ps / PS_PER_MS,
        "bound_holds_for_any_cut": found.any_cut,
        "above_bound_share": found.gap,
        "reason": found.reason,
        "planning_seconds": seconds,
        "orders": found.plan.orders(),
    }


def partition_text(found: Partition, seconds: float) -> str:
    """Return a partition as text: a row for each stage, then the figures of the iteration."""
    of = "any cut" if found.any_cut else "this cut"
    lines = [
        table(_stages(found)),
        "",
        f"iteration: {in_ms(found.iteration_ps)} for "
        f"{count(found.scenario.microbatches, 'microbatch', 'microbatches')}",
        f"lower bound of {of}: {in_ms(found.lower_bound_ps)}; the iteration is "
        f"{show_percent(found.gap)} above it",
        f"order: {found.reason}",
        f"planned in {show_time(1e9 * seconds)}",
    ]
    return "\n".join(lines)


def _stages(found: Partition) -> list[Row]:
    """Return a row for each stage: layers, device, times, memory, and the delay to the next."""
    scenario = found.scenario
    delays = [*(each / PS_PER_MS for each in scenario.forward_delay_ps), None]
    return [
        {
            "stage": stage,
            "first_layer": each.first,
            "last_layer": each.end - 1,
            "host": each.host,
            "device": each.device,
            "forward_ms": scenario.forward_ps[stage] / PS_PER_MS,
            "backward_input_ms": scenario.backward_input_ps[stage] / PS_PER_MS,
            "backward_weight_ms": scenario.backward_weight_ps[stage] / PS_PER_MS,
            "activation_cap": (
                None if each.memory.cap is None else each.memory.cap // each.memory.activation
            ),
            "peak_activations": each.peak_bytes // each.memory.activation,
            "delay_ms": delays[stage],
        }
        for stage, each in enumerate(found.stages)
    ]


def _read(model: Path, cluster: Path | None) -> tuple[Profile, Cluster]:
    """Return the profile of one file and the cluster of the same file or of another."""
    found = _parsed(model)
    if found.profile is None:
        raise UsageError(f"{model}: the file has no [[layer]], so it has no times")
    if cluster is None:
        if found.cluster is None:
            raise UsageError(
                f"{model}: the file has no [[host]]; give a file that has with --cluster"
            )
        return found.profile, found.cluster
    if found.cluster is not None:
        raise UsageError(f"{model}: the file has hosts, and so does --cluster; give one of them")
    hosts = _parsed(cluster)
    if hosts.cluster is None:
        raise UsageError(f"{cluster}: the file has no [[host]]")
    if hosts.profile is not None:
        raise UsageError(f"{cluster}: the file has layers, and so does --model; give one of them")
    return found.profile, hosts.cluster


def _parsed(path: Path) -> Model:
    try:
        content = path.read_text()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text") from None
    return parse_model(content, str(path))
