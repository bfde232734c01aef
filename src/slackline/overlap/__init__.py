"""PCCO: data-parallel training that reduces each parameter as it is ready.

DataParallel ─ _data_parallel        the wrapper that the user sees
    _checks, _manifest               what can be wrapped; what the ranks must agree on
    _reduction                       puts the parts together
        _attach, _guard, _watch      whoever reads a parameter gets its finished value
        _takeover, _choice           `step` and `zero_grad` that wait for nothing
        _session, _order             the rounds: post, flush, mark, finish
            _hooks                   what autograd calls before and after it adds a gradient
            _slot                    one parameter's gradient
            _gradient_group          gradients that are one reduction
            _tuning, _trial          how large the groups are
            _deferred, _stepper      the optimizer's own step on some parameters, later
    _open                            which exchange carries the gradients
        _exchange, _process_group    a NIC engine's group; a torch process group
    _buffers                         BatchNorm's statistics follow rank 0
    _recorder, _report               what each step's communication cost
"""

from slackline.overlap._data_parallel import DataParallel

__all__ = ["DataParallel"]
