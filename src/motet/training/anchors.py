"""Anchors of a league that are policies of earlier runs.

A league names a run directory, or one of its checkpoints, in the notation of ``motet eval -p``. The weights of that
policy are read when the new run begins, so the earlier run may change or vanish later. A copy is written to
``anchors/`` in the new run's directory, and the config of the new run names the copy, so that a resumed run has the
same opponents.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from motet.errors import SettingError
from motet.policies.entries import as_given
from motet.policy import Policy, PolicySpec
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.system.files import file_stems
from motet.training.settings import Settings

__all__ = ["RunAnchor", "copied", "is_run", "located", "run_anchor"]


@dataclass(frozen=True)
class RunAnchor:
    """A factory of the policy of an earlier run."""

    title: str
    source: str
    """The anchor as the user gave it."""
    spec: PolicySpec
    observation_space: Any
    action_space: Any

    def __call__(self) -> Policy:
        """Make the policy."""
        return self.spec.make(observation_space=self.observation_space, action_space=self.action_space)


def is_run(name: str) -> bool:
    """Whether an anchor is given as a run directory or a checkpoint, possibly followed by options."""
    return os.path.isdir(name.partition(",")[0].removeprefix("run="))


def run_anchor(name: str, observation_space: Any, action_space: Any) -> RunAnchor:
    """Read the policy of an earlier run. Raises if it was trained for other spaces."""
    entry = as_given(name)
    if len(entry.by_agent) > 1:
        known = ", ".join(entry.by_agent)
        raise SettingError(
            f"anchors: the run {name!r} has several policies ({known}); choose one of them, for example "
            f"{name},agent={next(iter(entry.by_agent))}"
        )
    anchor = RunAnchor(entry.title, name, entry.spec, observation_space, action_space)
    try:
        anchor()
    except SettingError as error:
        raise SettingError(f"anchors: {name!r} cannot play here: {error}") from error
    return anchor


def copied(anchors: Sequence[str], makers: Sequence[Any], directory: RunDirectory, settings: Settings) -> Settings:
    """Copy the anchors that are runs into a run directory, and return settings that name the copies."""
    folder, stems = directory.make_anchors(), file_stems(anchors)
    names = []
    for name, maker in zip(anchors, makers, strict=True):
        if not isinstance(maker, RunAnchor):
            names.append(name)
            continue
        given, who = maker.spec.arguments, maker.spec.arguments["who"]
        copy = RunDirectory.prepare(folder / stems[name])
        copy.begin({"agents": {who: given["config"]}, "world": {"path": None, "given": maker.source}})
        copy.save(Checkpoint(0, {who: {"weights": given["weights"]}}, {"source": maker.source}))
        names.append(f"{folder.name}/{stems[name]}")
    return replace(settings, league=replace(settings.league, anchors=tuple(names)))


def located(settings: Settings, directory: RunDirectory) -> Settings:
    """Return settings in which the copies are named by their full path."""
    given, folder = settings.league.anchors or (), directory.anchors.name
    found = tuple(str(directory.path / name) if name.startswith(f"{folder}/") else name for name in given)
    return replace(settings, league=replace(settings.league, anchors=found)) if found else settings
