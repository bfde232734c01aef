"""Functions of ranks that call `step`, `eval` and `step_microbatches` in every way that torch's
schedules permit."""

import torch
from pipeline_work import CPU, alone, batch, part, same_bits, told
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
from torch.nn.attention.flex_attention import BlockMask

from slackline.pipeline import Schedule

COUNT = 4
SAMPLES = 8
mse = nn.functional.mse_loss


def weighted(output, target, weights=None, power=1):
    """Return a loss with arguments of its own, which are not cut into microbatches."""
    if weights is not None:
        assert weights.shape == (3,)
        output = output * weights.sum()
    return mse(output, target) ** power


class Scaled(nn.Module):
    """A stage with keyword arguments of every kind."""

    def __init__(self, index):
        super().__init__()
        self.inner = part(index)

    def forward(self, x, *, columns=None, options=None, mask=None, name=""):
        x = self.inner(x)
        if columns is not None:
            assert columns.shape == (3, len(x))
            x = x * columns.sum(0)[:, None]
        if options is not None:
            x = x * options["scale"] + options["rows"][0]
        return x if mask is None else x * mask.shape[0]


def keywords():
    """Return a batch's keyword arguments of every kind that torch cuts or copies, and how."""
    blocks = torch.ones(SAMPLES, 1, 1, dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(blocks, torch.zeros(SAMPLES, 1, 1, 1, dtype=torch.int32))
    return {
        "columns": torch.arange(3.0 * SAMPLES).view(3, SAMPLES) / 8,
        "options": {"scale": 0.5, "rows": [torch.arange(12.0 * SAMPLES).view(SAMPLES, 12) / 64]},
        "mask": mask,
        "name": "not cut",
    }


def one_process(parts, x, target, loss_fn, *, scales=True, **named):
    """Return the losses and the output of one process; the last stage gets keyword arguments."""
    nn.Sequential(*parts).zero_grad()
    losses, outputs = [], []
    rows = SAMPLES // COUNT
    for microbatch, a in enumerate(x.tensor_split(COUNT)):
        place = slice(microbatch * rows, (microbatch + 1) * rows)
        found = {}
        if named:
            options = named["options"]
            found = {
                "columns": named["columns"][:, place],
                "options": {"scale": options["scale"], "rows": [options["rows"][0][place]]},
                "mask": torch.empty(rows),
            }
        outputs.append(parts[1](parts[0](a), **found))
        losses.append(loss_fn(outputs[-1], target, place))
        losses[-1].backward()
    for each in nn.Sequential(*parts).parameters():
        each.grad.div_(COUNT if scales else 1)
    return [loss.item() for loss in losses], torch.cat(outputs).detach()


def arguments(rank, size):
    """Compare steps with arguments of every kind with the same steps of one process."""
    x, y = batch(0, SAMPLES)
    own = {"weights": torch.tensor([0.5, 1.0, 2.0]), "power": 2}
    kinds = [  # the target, loss_fn, loss_kwargs, and the loss of a microbatch in one process
        (y, mse, None, lambda o, t, p: mse(o, t[p])),
        (y, weighted, own, lambda o, t, p: weighted(o, t[p], **own)),
        ((y, y), lambda o, t: mse(o, t[1]), {}, lambda o, t, p: mse(o, t[1][p])),
        ({"a": [y]}, lambda o, t: mse(o, t["a"][0]), None, lambda o, t, p: mse(o, t["a"][0][p])),
        (3, lambda o, t: o.sum() * t, None, lambda o, t, p: o.sum() * t),
        (None, lambda o, t: o.sum(), None, lambda o, t, p: o.sum()),
    ]
    for place, (target, loss_fn, loss_kwargs, one) in enumerate(kinds):
        named = keywords() if rank and place < 2 else {}
        specs = {"columns": 1, "options": {"scale": None, "rows": [0]}, "mask": 0, "name": None}
        stage = PipelineStage(Scaled(rank), rank, size, CPU)
        scales = place % 2 == 0
        options = {"kwargs_chunk_spec": _specs(specs, named), "scale_grads": scales}
        schedule = Schedule(stage, COUNT, loss_fn, **options)
        given = (x,) if rank == 0 else ()
        parts = [Scaled(index) for index in range(size)]
        expected, output = one_process(
            parts, x, target, one, scales=scales, **(keywords() if place < 2 else {})
        )
        for call in ("eval", "step"):
            losses = [7.0]
            found = getattr(schedule, call)(
                *given, target=target, losses=losses, loss_kwargs=loss_kwargs, **named
            )
            if rank:
                assert [loss.item() for loss in losses] == expected, (call, place)
                assert torch.equal(found, output)
                assert not found.requires_grad
            else:
                assert (found, losses) == (None, [7.0])
        same_bits(stage.submod, parts[rank])
        schedule.close()


def _specs(specs, named):
    """Return torch's chunk specs of the given dimensions; None copies a value to all chunks."""
    if not named:
        return None

    def spec(value):
        if isinstance(value, dict):
            return {name: spec(each) for name, each in value.items()}
        if isinstance(value, list):
            return [spec(each) for each in value]
        return _Replicate() if value is None else TensorChunkSpec(value)

    return spec(specs)


def ways_to_call(rank, size):
    """Check the results of calls with some arguments left out."""
    x, y = batch(0, SAMPLES)
    given = (x,) if rank == 0 else ()
    last = rank == size - 1
    calls = []

    def loss_fn(output, target, **options):
        calls.append(options)
        return mse(output, target)

    schedule = Schedule(PipelineStage(part(rank), rank, size, CPU), COUNT, loss_fn)
    with torch.inference_mode():
        found = schedule.eval(*given)
    assert (found is not None) == last
    assert calls == []  # nobody asked for the loss
    assert schedule.eval(*given, target=y, return_outputs=False) is None
    assert len(calls) == (COUNT if last else 0)
    losses = []
    cut = list(x.tensor_split(COUNT))
    outputs = schedule.step_microbatches(
        cut if rank == 0 else None,
        targets=list(y.tensor_split(COUNT)) if last else None,
        losses=losses,
        loss_kwargs={"a": 1},
    )
    assert (outputs is not None and len(outputs) == COUNT) == last
    assert len(losses) == (COUNT if last else 0)
    assert calls[COUNT:] == [{"a": 1}] * (COUNT if last else 0)
    dropped = schedule.step_microbatches(
        cut if rank == 0 else None,
        targets=list(y.tensor_split(COUNT)) if last else None,
        return_outputs=False,
    )
    assert dropped is None
    schedule.close()
    forwards = Schedule(PipelineStage(part(rank), rank, size, CPU), COUNT)
    with torch.no_grad():
        found = forwards.step(*given)
    assert (found is not None) == last
    forwards.close()


def not_merged(rank, size):
    """Take two steps whose outputs cannot be merged; return the errors and compare gradients."""
    x, y = batch(0, SAMPLES)
    module = Odd(rank, (lambda x: (x, object())) if rank else (lambda x: x))
    schedule = Schedule(
        PipelineStage(module, rank, size, CPU), COUNT, lambda output, target: mse(output[0], target)
    )
    given = (x,) if rank == 0 else ()
    found = []
    for _ in range(2):
        module.zero_grad()
        found.append(told(lambda: schedule.step(*given, target=y)))
        parts = [part(index) for index in range(size)]
        alone(parts, list(zip(x.tensor_split(COUNT), y.tensor_split(COUNT), strict=True)))
        same_bits(module.inner, parts[rank])
    return found


class Odd(nn.Module):
    """A stage whose output is given by a function."""

    def __init__(self, index, output):
        super().__init__()
        self.inner, self.output = part(index), output

    def forward(self, x):
        return self.output(self.inner(x))


def refused(rank, size):
    """Return the errors of calls that are refused, each in a group of its own."""
    x, y = batch(0, SAMPLES)

    def error_of(call, loss_fn=mse, output=None, specs=None):
        module = part(rank) if output is None or rank else Odd(rank, output)
        stage = PipelineStage(module, rank, size, CPU, group=dist.new_group(range(size)))
        schedule = Schedule(stage, COUNT, loss_fn, kwargs_chunk_spec=specs)
        given = (x,) if rank == 0 else ()
        return told(lambda: call(schedule, given))

    def without_gradients(schedule, given):
        with torch.no_grad():
            schedule.step(*given, target=y)

    def microbatches_in_inference(schedule, given):
        with torch.inference_mode():
            schedule.step_microbatches([x[:2]] * COUNT, targets=[y[:2]] * COUNT)

    return [
        error_of(without_gradients),
        error_of(microbatches_in_inference),
        error_of(lambda schedule, given: schedule.step(*given, target=y, losses=())),
        error_of(lambda schedule, given: schedule.step(*given, target=y, loss_kwargs=[1])),
        error_of(lambda schedule, given: schedule.eval(*given, losses=[]), loss_fn=None),
        error_of(lambda schedule, given: schedule.step(*given, target=torch.tensor(1.0))),
        error_of(
            lambda schedule, given: schedule.step(
                *given, target=y, **({} if given else {"mask": y, "other": y})
            ),
            specs={"mask": TensorChunkSpec(0)},
        ),
        error_of(lambda schedule, given: schedule.step(*given, target=y), output=lambda x: [x, 3]),
    ]


def no_target(rank, size):
    """Return the notes of the error of a loss function that needs a target and gets none."""
    schedule = Schedule(PipelineStage(part(rank), rank, size, CPU), COUNT, mse)
    try:
        schedule.step(*((batch(0, SAMPLES)[0],) if rank == 0 else ()))
    except AttributeError as error:
        return error.__notes__
    except RuntimeError as error:
        return type(error).__name__
    return "nothing"
