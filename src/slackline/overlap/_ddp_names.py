"""Names in checkpoints of DistributedDataParallel, which begin with the prefix `module.`."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

__all__ = ["without_prefix"]

_PREFIX = "module."


def without_prefix(module: nn.Module, state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state dict for `module` without the prefix of DistributedDataParallel.

    The result is `state_dict` itself unless its names fit the module better without the prefix: a
    module may have a child whose name is "module". Neither the given state dict nor the module is
    changed.
    """
    prefixed = [name for name in state_dict if name.startswith(_PREFIX)]
    stripped = {name.removeprefix(_PREFIX) for name in state_dict}
    if not prefixed or len(stripped) < len(state_dict):
        return state_dict
    own = module.state_dict(keep_vars=True).keys()
    as_given, fitting = len(own & state_dict.keys()), len(own & stripped)
    all_prefixed = len(prefixed) == len(state_dict)
    if fitting > as_given or (all_prefixed and not as_given):
        plain: OrderedDict[str, Any] = OrderedDict(state_dict)
        if hasattr(state_dict, "_metadata"):
            plain._metadata = OrderedDict(state_dict._metadata)  # type: ignore[attr-defined]
        consume_prefix_in_state_dict_if_present(plain, _PREFIX)
        return plain
    return state_dict
