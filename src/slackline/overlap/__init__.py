"""Data-parallel training that reduces each parameter's gradient as soon as it is ready.

The method is PCCO, parameter-based overlap of computation and communication (NTT, 2019).

DataParallel ─ _data_parallel        the wrapper that a training script uses
    _checks, _manifest               tests that a model can be wrapped and is equal on all ranks
    _model_gradients                 hooks, lazy parameters and patched optimizers of one model
        _attach, _lazy_parameters, _read_tracker    a read waits for the values that it needs
        _optimizer_patch, _choice    `step` and `zero_grad` that do not block
        _gradient_reducer            posting and awaiting the reductions of one optimizer
            _parameter_state         one parameter's gradient
            _gradient_group          several gradients in one reduction
            _arrivals, _hooks        detection of complete groups, with few hooks
            _grouping, _order        membership of the groups, and their layout in memory
                _observed_order      the order in which backward passes produce gradients
                _tuning, _trial, _drift    the size of the groups
                _rank_averages       averages of a few figures over the ranks
            _deferred, _partial_step    the optimizer's own step on some parameters, later
    _open                            the choice of the exchange that carries the gradients
        _exchange, _process_group    a NIC engine's group; a torch process group
    _buffers                         BatchNorm's statistics, copied from rank 0
    _recorder, _report               the cost of each step's communication
"""

from slackline.overlap._data_parallel import DataParallel

__all__ = ["DataParallel"]
