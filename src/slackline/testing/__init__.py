"""Public fakes, harnesses and references, for tests of what stands on slackline.

run_ranks: ranks as threads over the real engine, met in a MemoryStore. LoopbackFabric: groups whose
ranks are threads of one process, without an engine. LoopbackNic: a nic made of such fabrics.
`reference`: what the engine must compute, in NumPy.
"""

from slackline.testing._loopback import LoopbackFabric, LoopbackGroup, LoopbackNic
from slackline.testing._ranks import MemoryStore, run_ranks

__all__ = ["LoopbackFabric", "LoopbackGroup", "LoopbackNic", "MemoryStore", "run_ranks"]
