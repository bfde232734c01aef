"""PCCO: data-parallel training that reduces each parameter as it is ready.

DataParallel ─ _data_parallel        the wrapper that users hold
    _checks, _manifest               which models can be wrapped; whether ranks agree on theirs
    _model_gradients                 hooks, lazy parameters and patched optimizers of one model
        _attach, _lazy_parameters, _read_tracker    a read waits for the values that it needs
        _optimizer_patch, _choice    `step` and `zero_grad` that do not block
        _gradient_reducer            one optimizer's gradients: when they are posted, waited for
            _parameter_state         one parameter's gradient
            _gradient_group          gradients that are one reduction
            _arrivals, _hooks        when they have come, with few hooks
            _grouping, _order        which of them are a group, and where they lie
                _observed_order      the order in which backward passes bring them
                _tuning, _trial, _drift    how large groups are
                _rank_averages       averages of a few figures over the ranks
            _deferred, _partial_step    the optimizer's own step on some parameters, later
    _open                            which exchange carries the gradients
        _exchange, _process_group    a NIC engine's group; a torch process group
    _buffers                         BatchNorm's statistics, copied from rank 0
    _recorder, _report               what each step's communication cost
"""

from slackline.overlap._data_parallel import DataParallel

__all__ = ["DataParallel"]
