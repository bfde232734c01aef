"""What every benchmark shares.

machine  what was measured on: processor, kernel, versions, date, commit
summary  median, 10th and 90th percentile of a sample
report   rows, targets (met is computed), JSON and tables
ranks    rank processes, here or on the hosts of a lab, that do what the benchmark asks, and end
         with the first one's error
pattern  contents that show after any number of calls whether each of them was right
options  --quick and --json
"""
