"""The kinds of stages in the table of docs/how-to/pipeline.md, each with a model that shows it.

A model has two stages. A rank trains one of them for two steps of four microbatches, with a
schedule in which B and W are apart, and compares gradients and buffers with one process bit by bit.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from pipeline_work import CPU, batch, told
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, SplitPoint, pipeline
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from slackline.overlap import DataParallel
from slackline.pipeline import Schedule
from slackline.pipeline._worker import Worker

WIDTH, COUNT, SAMPLES = 12, 4, 8
mse = nn.functional.mse_loss

APART = "B and W apart"
IN_B = "whole in B"
IN_W = "whole in W"
REFUSED = "refused"
OWN = "the stage's own"


class Part(nn.Module):
    """A stage with a few layers, whose forward is given by a function."""

    def __init__(self, index, forward):
        super().__init__()
        torch.manual_seed(index)
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.index, self.compute, self.calls = index, forward, 0

    def forward(self, x):
        self.calls += 1
        return self.compute(self, x)


def plain(part, x):
    return part.two(part.one(x).tanh())


@dataclass(kw_only=True)
class Kind:
    """A kind of stage: the forwards of both stages, and everything that is special about it."""

    backward: str = APART
    """How the backward of the second stage runs in the end."""
    first: object = plain
    last: object = plain
    prepare: object = lambda part: part
    """Changes the second stage when it is made; the result takes its place."""
    change: object = lambda part: part
    """Changes the second stage between the two steps."""
    wrap: object = lambda module: module
    """Wraps the second stage for the pipeline only."""
    loss_fn: object = mse
    around: object = None
    """A context around each step."""
    builder: object = None
    frozen: bool = False
    """Whether the first stage is frozen."""
    slow: bool = False


class Scaled(torch.autograd.Function):
    """x times weight, with a gradient for both."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Deferred(torch.autograd.Function):
    """A product with a weight, which leaves the weight's gradient to a function for later."""

    @staticmethod
    def forward(ctx, x, weight, later):
        ctx.save_for_backward(x, weight)
        ctx.later = later
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        ctx.later.append((gradient, x))
        return gradient @ weight, None, None


def deferred(part, x):
    return Deferred.apply(part.one(x).tanh(), part.two.weight, part.later)


def deferred_builder(part):
    """Return torch's `dw_builder` of a stage that runs `deferred`."""

    def build():
        given, part.later[:] = list(part.later), []

        def run():
            for gradient, x in given:
                found = gradient.t() @ x
                weight = part.two.weight
                weight.grad = found if weight.grad is None else weight.grad + found

        return run

    return build


def with_later(part):
    part.later = []
    part.two.bias = None
    return part


def gated(part, x):
    return part.two(part.one(x).tanh()) if part.calls % COUNT != 2 else x


def repeated(part, x):
    return part.one(part.two(part.one(x).tanh()).tanh())


def tie(part):
    part.two.weight = part.one.weight
    return part


def nest(part):
    part.two = nn.Sequential(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()), nn.LayerNorm(WIDTH))
    return part


def parametrize(part):
    parametrizations.weight_norm(part.one)
    parametrizations.spectral_norm(part.two)
    return part


def half_frozen(part):
    part.one.requires_grad_(False)
    return part


def custom(part, x):
    return Scaled.apply(part.one(x), part.two.bias)


def recomputed(part, x):
    return checkpoint(plain, part, x, use_reentrant=False)


def reentrant(part, x):
    return checkpoint(plain, part, x, use_reentrant=True)


def half(part, x):
    with torch.autocast("cpu", torch.bfloat16):
        return plain(part, x).float()


def dropped(part, x):
    torch.manual_seed(part.index * 100 + part.calls)  # the same in one process
    return part.two(nn.functional.dropout(part.one(x), 0.5))


def normalized(part, x):
    return part.two(part.norm(part.one(x)))


def with_norm(part):
    part.norm = nn.BatchNorm1d(WIDTH)
    return part


def embedded(part, x):
    return plain(part, x) + part.words(x.detach().argmax(1))


def with_words(part):
    part.words = nn.Embedding(WIDTH, WIDTH, sparse=True)
    return part


def to_complex(part, x):
    return torch.complex(plain(part, x), x)


def from_complex(part, x):
    return plain(part, torch.view_as_real(x * part.turn).sum(-1))


def with_turn(part):
    part.turn = nn.Parameter(torch.full((WIDTH,), 1 + 2j, dtype=torch.complex64))
    return part


def with_adapter(part):
    part.two = nn.Sequential(part.two, nn.Linear(WIDTH, WIDTH, bias=False))
    nn.init.eye_(part.two[1].weight)
    return part


def frozen(part):
    return part.requires_grad_(False)


def unfrozen(part):
    return part.requires_grad_(True)


def assigned(part):
    values = {name: value.clone() for name, value in part.state_dict().items()}
    part.load_state_dict(values, assign=True)
    return part


def hooked_tensor(part, x):
    x = part.one(x)
    x.register_hook(lambda gradient: 2 * gradient)
    return part.two(x)


def hooked_module(part):
    part.one.register_full_backward_hook(lambda module, to, of: (2 * to[0],))
    return part


def hooked_parameters(part):
    part.added = 0

    def count(_):
        part.added += 1

    part.one.weight.register_hook(lambda gradient: 2 * gradient)
    part.two.weight.register_post_accumulate_grad_hook(count)
    return part


@contextmanager
def autocast():
    with torch.autocast("cpu", torch.bfloat16):
        yield


def mixed_loss(output, target):
    return mse(output.float(), target)


def overlap(module):
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    return DataParallel(module, optimizer, process_group=alone[dist.get_rank()])


def ddp(module):
    return DistributedDataParallel(module)


def fsdp1(module):
    return FullyShardedDataParallel(module, use_orig_params=True, device_id=CPU)


def fsdp2(module):
    return fully_shard(
        module, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))["dp"]
    )


def compiled(module):
    return torch.compile(module, backend="aot_eager")


def integer(part, x):
    return (plain(part, x) * 8).long().remainder(WIDTH)


def from_integers(part, x):
    return plain(part, nn.functional.one_hot(x, WIDTH).float().mean(1))


def detached(part, x):
    return plain(part, x).detach()


def ignoring(part, x):
    return plain(part, torch.ones_like(x))


SCALER = torch.amp.GradScaler("cpu", init_scale=1024.0)


def scaled_loss(output, target):
    return SCALER.scale(mse(output, target))


KINDS = {
    "plain modules": Kind(),
    "frozen stage before": Kind(frozen=True, backward=IN_W),
    "detached output before": Kind(first=detached, backward=IN_W),
    "integer output before": Kind(first=integer, last=from_integers, backward=IN_W),
    "last stage that ignores its input": Kind(last=ignoring, backward=IN_W),
    "gate that leaves a microbatch without gradient": Kind(last=gated),
    "frozen layers": Kind(prepare=half_frozen),
    "tied layers": Kind(prepare=tie, backward=IN_B),
    "layer used twice": Kind(last=repeated, backward=IN_B),
    "nested modules": Kind(prepare=nest),
    "parametrizations": Kind(prepare=parametrize),
    "custom autograd.Function with weights": Kind(last=custom, backward=IN_B),
    "checkpoint, use_reentrant=False": Kind(last=recomputed, backward=IN_B),
    "checkpoint, use_reentrant=True": Kind(last=reentrant, backward=IN_B),
    "torch.compile": Kind(wrap=compiled, backward=IN_B, slow=True),
    "autocast inside the stage": Kind(last=half),
    "autocast around step": Kind(around=autocast, loss_fn=mixed_loss),
    "GradScaler": Kind(loss_fn=scaled_loss),
    "hooks of parameters": Kind(prepare=hooked_parameters),
    "hooks of modules": Kind(prepare=hooked_module),
    "hooks of tensors": Kind(last=hooked_tensor, backward=IN_B),
    "BatchNorm's buffers": Kind(last=normalized, prepare=with_norm),
    "dropout": Kind(last=dropped),
    "sparse embedding": Kind(last=embedded, prepare=with_words),
    "complex tensors": Kind(first=to_complex, last=from_complex, prepare=with_turn),
    "adapters added between steps": Kind(change=with_adapter),
    "layers unfrozen between steps": Kind(prepare=frozen, change=unfrozen),
    "parameters assigned between steps": Kind(change=assigned),
    "traced stages": Kind(slow=True),
    "dw_builder": Kind(last=deferred, prepare=with_later, builder=deferred_builder, backward=OWN),
    "slackline.overlap.DataParallel": Kind(wrap=overlap),
    "FSDP2": Kind(wrap=fsdp2, backward=IN_B),
    "FSDP1": Kind(wrap=fsdp1, backward=REFUSED),
    "DDP": Kind(wrap=ddp, backward=REFUSED),
}


@dataclass
class Watch:
    """The way in which the latest backward of each stage ran."""

    ways: dict = field(default_factory=dict)

    @contextmanager
    def watching(self):
        original = Worker.weights

        def weights(worker, microbatch):
            kept = worker._kept[microbatch]
            branches = kept.divided is not None and kept.divided._branches
            if kept.done:
                self.ways[worker.index] = IN_B
            elif kept.runner is not None:
                self.ways[worker.index] = OWN
            else:
                self.ways[worker.index] = APART if branches else IN_W
            return original(worker, microbatch)

        Worker.weights = weights
        try:
            yield self
        finally:
            Worker.weights = original


def model_of(kind):
    parts = [Part(0, kind.first), Part(1, kind.last)]
    if kind.frozen:
        parts[0].requires_grad_(False)
    return [parts[0], kind.prepare(parts[1])]


def one_process(kind, parts, x, y):
    nn.Sequential(*parts).zero_grad()
    for a, b in zip(x.tensor_split(COUNT), y.tensor_split(COUNT), strict=True):
        with kind.around() if kind.around else torch.enable_grad():
            loss = kind.loss_fn(parts[1](parts[0](a)), b)
        loss.backward()
        if kind.builder is not None:
            deferred_builder(parts[1])()()
    for each in nn.Sequential(*parts).parameters():
        if each.grad is not None:
            each.grad.div_(COUNT)


def differences(mine, theirs):
    """Return the names of gradients and buffers that differ."""
    found = []
    for (name, one), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        got, wanted = one.grad, other.grad
        if hasattr(got, "full_tensor"):
            got = got.full_tensor()
        if (got is None) != (wanted is None):
            found.append(f"{name}: {got} for {wanted}")
        elif got is not None and not torch.equal(got.to_dense(), wanted.to_dense()):
            found.append(name)
    for (name, one), other in zip(mine.named_buffers(), theirs.buffers(), strict=True):
        if not torch.equal(one, other):
            found.append(name)
    return found


def traced_stage(parts, rank):
    model = nn.Sequential(*(nn.Sequential(each.one, nn.Tanh(), each.two) for each in parts))
    split = {"1": SplitPoint.BEGINNING}
    whole = pipeline(model, mb_args=(batch(0, SAMPLES // COUNT)[0],), split_spec=split)
    return whole.build_stage(rank, CPU)


def trained(name, rank, size):
    """Train a kind of stage; return how its backward ran, and what differs from one process."""
    kind = KINDS[name]
    torch.manual_seed(0)
    parts, reference = model_of(kind), model_of(kind)
    if kind.backward == REFUSED:
        wrapped = kind.wrap(parts[rank])
        return told(lambda: Schedule(PipelineStage(wrapped, rank, size, CPU), COUNT, mse)), []
    module = kind.wrap(parts[1]) if rank else parts[0]
    if rank == 0 and kind.wrap in (overlap, fsdp2):
        kind.wrap(Part(2, plain))  # every rank takes part in the making of a group
    if name == "traced stages":
        stage = traced_stage(parts, rank)
    else:
        builder = kind.builder(parts[rank]) if kind.builder and rank else None
        stage = PipelineStage(module, rank, size, CPU, dw_builder=builder)
    schedule = Schedule(stage, COUNT, kind.loss_fn, schedule="zb-h1")
    watch, found = Watch(), []
    for turn in range(2):
        x, y = batch(turn, SAMPLES)
        one_process(kind, reference, x, y)
        parts[rank].zero_grad()
        with watch.watching(), kind.around() if kind.around else torch.enable_grad():
            schedule.step(*(() if rank else (x,)), target=y if rank else None)
        compared = stage.submod if name == "traced stages" else parts[rank]
        found += differences(compared, reference[rank])
        if turn == 0:
            kind.change(parts[1])
            kind.change(reference[1])
    if name == "hooks of parameters" and rank:
        assert parts[1].added == reference[1].added == 2 * COUNT
    schedule.close()
    return watch.ways.get(rank, ""), found


def quick(rank, size):
    return {name: trained(name, rank, size) for name, kind in KINDS.items() if not kind.slow}


def slow(rank, size):
    return {name: trained(name, rank, size) for name, kind in KINDS.items() if kind.slow}
