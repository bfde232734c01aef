"""What every benchmark shares.

machine   what was measured on: processor, kernel, versions, date, commit; counters of the kernel
summary   median, 10th and 90th percentile of a sample
report    rows, targets (met is computed), JSON and tables
ranks     rank processes, here or on the hosts of a lab, that do what the benchmark asks, and end
          with the first one's error
programs  programs in C or C++ in the place of ranks; their side is turns.h
openmpi   OpenMPI as such a program, here or on the hosts of a lab
usage     processor time and context switches of a process
rounds    the order in which contestants take turns
pattern   contents that show after any number of calls whether each of them was right
options   --quick, --json, and what is left out
"""
