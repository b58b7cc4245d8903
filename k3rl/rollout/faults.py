"""Episodes that say nothing about the policy: some are told and left out, too many of one domain end the job."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable

from k3rl.errors import EnvironmentFault, InfrastructureError
from k3rl.rollout.group import EpisodeSummary
from k3rl.types import StopReason

log = logging.getLogger(__name__)


def tell_faults(episodes: Iterable[EpisodeSummary], where: str, limit: float) -> None:
    """Warn of each domain's unscored episodes with their most frequent error; `where` says when, e.g. "step 12".

    Raises EnvironmentFault or InfrastructureError, by whose fault that error was, if the share `limit` of a domain's
    episodes (or more) have no score: what is left would be trained on as if it were the whole.
    """
    by_domain: dict[str, list[EpisodeSummary]] = defaultdict(list)
    for episode in episodes:
        by_domain[episode.domain].append(episode)
    for name, played in sorted(by_domain.items()):
        faulty = [episode for episode in played if episode.reward is None]
        if not faulty:
            continue
        error, _ = Counter(episode.error for episode in faulty).most_common(1)[0]
        first = next(episode for episode in faulty if episode.error == error)
        text = f"{where}: {len(faulty)} of {len(played)} episodes of {name} failed, e.g. {first.task_id}: {error}"
        if len(faulty) < limit * len(played):
            log.warning("%s; they are not trained on", text)
            continue
        text = f"{text} (rollout.fault_limit={limit:g})"
        if first.stop is StopReason.ENVIRONMENT:
            raise EnvironmentFault(f"{text}; mend the domain, the same command resumes from the last checkpoint")
        raise InfrastructureError(f"{text}; the same command resumes from the last checkpoint")
