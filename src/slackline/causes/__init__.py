"""Why a job is slow, and why it failed: links, NICs, switches, hosts, ranks, loaders, deaths.

    _cause        a named cause, and the kinds of causes
    _pace         change detectors of a rank's computation and of its pauses between steps
    _cycles       steps of ranks without records of steps, found in their collectives
    _core_waits   a rank's waits for a core, beyond the usual ones for its work
    _hosts        the ranks of each host, and the wires that are in use between hosts
    _network      links, NICs and switches, from the disturbed links of a job
    _round_trips  round trips before and after a disturbance
    _ranks        slow hosts, slow ranks and slow data loaders, from the pace of all ranks
    _deaths       dead ranks, from failed operations and from the ends of telemetry files
    _unlike       links and NICs that are unlike the others of their rail
    _peers        the comparison with peers, of links, NICs and ranks, also since the start
    _diagnosis    the diagnosis of a job: all of the above, with a hold against premature names
    _spells       the times in which causes held, merged for each cause
    _watch        a job and its diagnosis, while the ranks write and afterwards
    ending/       the end of a job, from its ranks' reports and telemetry
    _answer       why a job is slow, and why it failed: one answer

The package reads the state of a job (`slackline.history`) and has no clock: the caller passes the
time. The same records at the same times always give the same causes.
"""

from slackline.causes._answer import Answer, answer
from slackline.causes._cause import Cause, Kind
from slackline.causes._diagnosis import Diagnosis
from slackline.causes._hosts import hosts_of
from slackline.causes._peers import compare_links, sites_of
from slackline.causes._spells import Recurrence, Spell, recurrences
from slackline.causes._watch import Watch

__all__ = [
    "Answer",
    "Cause",
    "Diagnosis",
    "Kind",
    "Recurrence",
    "Spell",
    "Watch",
    "answer",
    "compare_links",
    "hosts_of",
    "recurrences",
    "sites_of",
]
