"""Public fakes, harnesses and reference implementations, for tests of code that uses slackline.

run_ranks: runs ranks as threads over the real engine, which find each other through a MemoryStore.
LoopbackFabric: groups whose ranks are threads of one process, without an engine. LoopbackNic: a nic
of such groups. `reference`: the engine's results, computed in NumPy. `thread_device`: an
accelerator made of threads.
"""

from slackline.testing._loopback import LoopbackFabric, LoopbackGroup, LoopbackNic
from slackline.testing._ranks import MemoryStore, run_ranks

__all__ = ["LoopbackFabric", "LoopbackGroup", "LoopbackNic", "MemoryStore", "run_ranks"]
