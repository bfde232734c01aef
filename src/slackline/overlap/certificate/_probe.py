"""The test whether ranks compute the same bits: virtual rank 0, computed by each of them.

In the first step every rank computes the gradients of virtual rank 0 and the optimizer's step on
copies of three tensors. The hashes are compared before any gradient is sent. No comparison of
settings replaces this one: two processors may differ in ways that no setting tells.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
import xxhash
from torch import Tensor
from torch.optim import Optimizer

from slackline.errors import MismatchError
from slackline.overlap._choice import steps_alone
from slackline.overlap._partial_step import partial_step, raw_groups, settings_of
from slackline.overlap.certificate._conditions import conditions
from slackline.overlap.certificate._state import content
from slackline.overlap.exchange import Exchange
from slackline.records import differences

__all__ = ["compare", "pin_threads", "refusal"]

_COPIES = 3
"""The number of tensors of each optimizer on whose copies it takes a step."""


def pin_threads(exchange: Exchange) -> tuple[int, list[int]]:
    """Let torch use as many threads on all ranks as on the rank with the fewest; return both.

    The second result has the number that each rank had. Blocks on all ranks.
    """
    texts = exchange.share(str(torch.get_num_threads()).encode())
    had = [int(text) for text in texts]
    if len(set(had)) > 1:
        torch.set_num_threads(min(had))
    return min(had), had


def compare(
    grads: Iterable[Tensor | None], optimizers: Sequence[Optimizer], exchange: Exchange
) -> str:
    """Compare the gradients that all ranks have now, and the optimizers' steps, bit by bit.

    Returns a sentence that names the ranks with other bits and what is known to differ; an empty
    one if all are equal. All ranks get the same sentence. Blocks on all ranks.
    """
    digest = xxhash.xxh3_128()
    for grad in grads:
        digest.update(b"-" if grad is None else content(grad))
    for optimizer in optimizers:
        for value in _stepped(optimizer):
            digest.update(content(value))
    mine = json.dumps([digest.hexdigest(), conditions(optimizers)]).encode()
    found = [json.loads(text) for text in exchange.share(mine)]
    (hashed, known), *_ = found
    others = [rank for rank, (each, _) in enumerate(found) if each != hashed]
    if not others:
        return ""
    peer = others[0]
    differing = [
        f"{name} is {here!r} on rank 0 and {there!r} on rank {peer}"
        for name, here, there in differences(known, found[peer][1])
    ]
    named = f"rank {peer}" if len(others) == 1 else f"ranks {', '.join(map(str, others))}"
    verb = "computes" if len(others) == 1 else "compute"
    why = "; ".join(differing) or "no known setting differs"
    return f"{named} {verb} other bits than rank 0 from the same samples: {why}"


def refusal(sentence: str, rank: int) -> MismatchError:
    """Return the error for ranks that compute other bits."""
    return MismatchError(
        f"{sentence}. Make the ranks alike, or pass exact=False to train without the promise of "
        "equal bits",
        rank=rank,
    )


def _stepped(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield copies of a few parameters after the optimizer's step with their present gradients.

    An optimizer that may look at several parameters at once takes no step, nor does one of sharded
    parameters, of which each rank has others.
    """
    present = [
        (group, parameter)
        for group, (_, parameters) in enumerate(raw_groups(optimizer))
        for parameter in parameters
        if parameter.grad is not None and not hasattr(parameter, "full_tensor")
    ]
    if not present or not steps_alone(type(optimizer)):
        return
    kept: defaultdict[Tensor, Any] = defaultdict(dict)
    copies = dict[int, list[Tensor]]()
    for group, parameter in present[:: max(1, (len(present) - 1) // (_COPIES - 1))][:_COPIES]:
        grad = parameter.grad
        assert grad is not None
        copy = parameter.detach().clone().requires_grad_()
        copy.grad = grad.detach().clone()
        if parameter in optimizer.state:
            kept[copy] = deepcopy(optimizer.state[parameter])
        copies.setdefault(group, []).append(copy)
    partial_step(optimizer, settings_of(optimizer), copies, state=kept)
    for stepped in copies.values():
        yield from (copy.detach() for copy in stepped)
