"""A job that a command starts: its processes, its hosts, its files, and its end.

_options     the options of all commands that start a job
_config      a file of settings for `slackline run --config`
_hosts       the hosts of a job that runs on several machines
_following   the time from a job's start to its end: output and signals
_limits      the processors and the memory that the job may use
_loopback    the address at which ranks of one machine meet
_output      the copies of the ranks' output
_launch      a job: its files, its ranks and its exit codes
_agent       the process under `slackline run` that runs torchrun
_one_agent   the store of a job that one torchrun starts
_orphans     cleanup of the processes that a killed torchrun leaves behind
_interrupts  the signals that ask a command to end
_stage       the hosts that a job runs on, and the injection of faults there
_wired_node  a simulated aggregation node on a wire of the lab, and its aggregators
_wired_bits  the comparison of a job through that node with the same job in software
_causes      the failed ranks, and the rank that likely caused the failure
_failed_job  the explanation of a failed job
_page        the page about a job, if its packages are installed
_kept_job    the command line of a job whose telemetry is kept
_announced   the running jobs of this user, which other commands find
"""
