"""Connections to other engines: rendezvous, handshake, listener, TLS, and the rails of links.

_addresses             the addresses of this host
_opening_store         a group's store while it opens: waits with a deadline, failures that are told
_rendezvous            endpoint descriptors, exchanged through the store of a group; the comparison
                       of the ranks' kernels
_paths, _rail_set      the rails that follow from the addresses of two engines
_messages, _handshake, _handshake_channel   mutual authentication over one socket
_packet_ladder         the trial of a path with packets of growing length
_sockets               waits for sockets, their end in a forked child, free ports, TCP's congestion
                       control
_listener, _acceptor   listening sockets, and the admission of connections
_peer, _links          accepted and dialled connections, by peer
_address_space         sizes of registered memory that fit into limited address spaces
_remedies              advice for rails that stay missing: MTU, NAT, loopback
_admissions            the limit of unauthenticated connections
_rail_handle           an authenticated connection becomes a rail of the engine
_address_exchange      new addresses, told to a peer
_tls, _tls_proxy       certificates, and the thread that encrypts for the engine
_injector              faults of rails, from a fault plan
_connection_manager    the event loop on which these modules run
_network               the connections of one engine together
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.nic.connect._address_space import as_large_as_possible, equal_arenas
    from slackline.nic.connect._addresses import Interface, devices, local_interfaces
    from slackline.nic.connect._admissions import Admissions, Refusals
    from slackline.nic.connect._connection_manager import ConnectionManager
    from slackline.nic.connect._handshake import HandshakeMessage, fresh_nonce
    from slackline.nic.connect._handshake_channel import HandshakeChannel, dial
    from slackline.nic.connect._messages import MAC_BYTES, MAX_PAYLOAD
    from slackline.nic.connect._network import Network, load_links
    from slackline.nic.connect._opening_store import (
        OpeningStore,
        absent_keys,
        answering,
        ranks_text,
        tell_failure,
        wait_until,
    )
    from slackline.nic.connect._paths import Attempt
    from slackline.nic.connect._rendezvous import (
        EndpointDescriptor,
        Rendezvous,
        check_kernels,
        exchange_descriptors,
        host_identity,
        read_key,
        to_descriptor,
    )
    from slackline.nic.connect._sockets import (
        check_congestion,
        control_congestion,
        is_named,
        port_range,
        port_range_text,
        ready,
    )
else:
    __getattr__ = lazily(
        __name__,
        {
            "_address_space": "as_large_as_possible equal_arenas",
            "_addresses": "Interface devices local_interfaces",
            "_admissions": "Admissions Refusals",
            "_connection_manager": "ConnectionManager",
            "_handshake": "HandshakeMessage fresh_nonce",
            "_handshake_channel": "HandshakeChannel dial",
            "_messages": "MAC_BYTES MAX_PAYLOAD",
            "_network": "Network load_links",
            "_opening_store": (
                "OpeningStore absent_keys answering ranks_text tell_failure wait_until"
            ),
            "_paths": "Attempt",
            "_rendezvous": (
                "EndpointDescriptor Rendezvous check_kernels exchange_descriptors host_identity "
                "read_key to_descriptor"
            ),
            "_sockets": (
                "check_congestion control_congestion is_named port_range port_range_text ready"
            ),
        },
    )

__all__ = [
    "MAC_BYTES",
    "MAX_PAYLOAD",
    "Admissions",
    "Attempt",
    "ConnectionManager",
    "EndpointDescriptor",
    "HandshakeChannel",
    "HandshakeMessage",
    "Interface",
    "Network",
    "OpeningStore",
    "Refusals",
    "Rendezvous",
    "absent_keys",
    "answering",
    "as_large_as_possible",
    "check_congestion",
    "check_kernels",
    "control_congestion",
    "devices",
    "dial",
    "equal_arenas",
    "exchange_descriptors",
    "fresh_nonce",
    "host_identity",
    "is_named",
    "load_links",
    "local_interfaces",
    "port_range",
    "port_range_text",
    "ranks_text",
    "read_key",
    "ready",
    "tell_failure",
    "to_descriptor",
    "wait_until",
]
