"""The panel of faults: the times in which links were disturbed and in which causes held."""

from typing import Any

from slackline.causes import Watch
from slackline.detect import Episode
from slackline.history import Job

__all__ = ["episode_span", "faults"]

_MOST = 200


def faults(watch: Watch) -> dict[str, Any]:
    """Return the latest 200 faults, the latest first, which the charts shade.

    A fault lasts from the Unix time `since_s` until `until_s`, which is None while the fault lasts.
    """
    job = watch.job
    spans: dict[tuple[str, float, float | None], None] = {}
    for spell in watch.spells:
        until_s = None if spell.until_ns is None else spell.until_ns / 1e9
        if not spell.cause.told_by_verdicts:
            spans[spell.cause.sentence, spell.cause.since_ns / 1e9, until_s] = None
    # Both directions of a rail that is cut have one sentence.
    for episode in job.episodes[-_MOST:]:
        spans[episode.reason, *episode_span(job, episode)] = None
    latest = sorted(spans, key=lambda span: -span[1])[:_MOST]
    return {
        "faults": [
            {"text": text, "since_s": since_s, "until_s": until_s}
            for text, since_s, until_s in latest
        ]
    }


def episode_span(job: Job, episode: Episode) -> tuple[float, float | None]:
    """Return the Unix times of a disturbance's beginning and end, in seconds; None for no end yet.

    The beginning may have been told late, but never lies before that of the job.
    """
    since_ns = max(episode.began_ns, job.begun_ns)
    if episode.until_ns is None:
        return since_ns / 1e9, None
    lasted_ns = episode.until_ns - episode.since_ns
    return since_ns / 1e9, max(episode.began_ns + lasted_ns, since_ns) / 1e9
