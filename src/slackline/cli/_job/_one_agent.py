"""The rendezvous of a job whose ranks are all started by one torchrun, its only agent.

    agent (torchrun)  ── starts ──>  ranks
          └─ TCPStore at one address  <── MASTER_ADDR, MASTER_PORT ──┘

torch's own rendezvous also joins several agents, and its stores listen at all addresses of the
host. A single agent waits for no other. This rendezvous therefore only makes the store, which
listens at the one address that the ranks use.
"""

import socket

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

__all__ = ["register"]


def register(name: str) -> None:
    """Make this rendezvous known to torchrun as `name`, for torchrun's option --rdzv-backend."""
    rendezvous_handler_registry.register(name, _OneAgent)


class _OneAgent(RendezvousHandler):
    """The rendezvous of a single agent, which is complete at once.

    The store listens at the address of torchrun's option --local-addr.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        address = parameters.local_addr
        assert address is not None, "the command gives --local-addr"
        self._parameters = parameters
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((address, 0))
            listener.listen()
            port = listener.getsockname()[1]
            # The store owns the descriptor from here on.
            store = TCPStore(address, port, is_master=True, master_listen_fd=listener.detach())
        self._info = RendezvousInfo(
            PrefixStore(parameters.run_id, store), 0, 1, RendezvousStoreInfo(address, port)
        )

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return self._parameters.backend

    def next_rendezvous(self) -> RendezvousInfo:
        return self._info

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass  # no other agent would learn of it

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._parameters.run_id

    def shutdown(self) -> bool:
        return True
