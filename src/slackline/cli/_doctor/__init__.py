"""`slackline doctor`: what it looks at.

_finding     the result of one check
_system      processors, memory, descriptors, clocks, versions
_network     interfaces, sockets, names
_lab         what a lab needs
_machine     all checks of this machine
_transfers   the ranks' part: bandwidth and latency between any two
_matrix      what the transfers found, in sentences
_ranks       the program that each rank runs
_show        findings and matrices on a terminal
"""
