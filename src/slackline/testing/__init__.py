"""Public fakes and references, for tests of what stands on slackline.

LoopbackFabric: groups whose ranks are threads of one process, without an engine. LoopbackNic: a nic
made of such fabrics. `reference`: what the engine must compute, in NumPy.
"""

from slackline.testing._loopback import LoopbackFabric, LoopbackGroup, LoopbackNic

__all__ = ["LoopbackFabric", "LoopbackGroup", "LoopbackNic"]
