"""Data-parallel training that reduces each parameter's gradient as soon as it is ready.

The method is PCCO, parameter-based overlap of computation and communication (NTT, 2019).

DataParallel ─ _data_parallel        the wrapper that a training script uses
    _checks, _manifest               tests that a model can be wrapped and is equal on all ranks
    _model_gradients                 hooks, lazy parameters and patched optimizers of one model
        _attach                      parameters that wait for their pending updates
        _optimizer_patch, _choice    `step` and `zero_grad` that do not block
        _partial_step                the optimizer's own step on some parameters
        reduction/                   the reductions of one optimizer's gradients
    _virtual_ranks, _weights         steps with the same bits on any number of ranks
    _ddp_parts, _fsdp_parts          virtual ranks of models in torch's own wrappers
        _hooked_parts                what they have in common
    _part_data                       their samples, for data loaders
    exchange/                        the transport of the gradients
    _buffers                         BatchNorm's statistics, copied from rank 0
    certificate/                     the hash of each step, and a test of the ranks' bits
    _recorder, _report               the cost of each step's communication
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.overlap._data_parallel import DataParallel
    from slackline.overlap._ddp_parts import DDPParts
    from slackline.overlap._fsdp_parts import FSDPParts
    from slackline.overlap._part_data import PartDataset, PartLoaders, PartSampler
    from slackline.overlap._virtual_ranks import VirtualRank
else:
    __getattr__ = lazily(
        __name__,
        {
            "_data_parallel": "DataParallel",
            "_ddp_parts": "DDPParts",
            "_fsdp_parts": "FSDPParts",
            "_part_data": "PartDataset PartLoaders PartSampler",
            "_virtual_ranks": "VirtualRank",
        },
    )

__all__ = [
    "DDPParts",
    "DataParallel",
    "FSDPParts",
    "PartDataset",
    "PartLoaders",
    "PartSampler",
    "VirtualRank",
]
