"""The checks that `slackline doctor` makes.

_finding     the result of one check
_system      processors, memory, descriptors, clocks, versions
_network     interfaces, sockets, host names
_paths       addresses that ranks would use, NUMA nodes of NICs
_container   the engine of the container that the process runs in
_lab         the requirements of a lab (a virtual network on this machine)
_machine     all checks of this machine
_transfers   bandwidth and latency between any two ranks, measured by the ranks
_matrix      the outliers among the measured transfers, as sentences
_ranks       the program that each rank runs
_show        findings and matrices on a terminal
"""
