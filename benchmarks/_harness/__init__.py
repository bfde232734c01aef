"""The code that all benchmarks share.

machine   description of the machine: processor, kernel, versions, date, commit; kernel counters
summary   median, 10th and 90th percentile of a sample
report    rows, targets and whether they are met, JSON and tables
ranks     rank processes, on this host or on the hosts of a lab (a virtual network on this machine)
programs  programs in C or C++ as ranks; turns.h is their side of the protocol
commands  the `slackline` command of this environment
openmpi   OpenMPI as such a program, on this host or on the hosts of a lab
usage     processor time and context switches of a process, idle time of the machine
rounds    the order in which contestants take turns
pattern   buffer contents that show, after any number of calls, whether each result was right
ideal     the shortest times that a wire allows
groups    a rank's process groups
timers    exact sleeps, which stand for computations
timed_pipeline   pipelines whose stages sleep where they would compute
options   the command line: --quick, --json, and the choice of parts and contestants
"""
