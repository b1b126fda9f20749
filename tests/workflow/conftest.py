"""Whole stories: the command line in processes of its own, on simulated slices that stay up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from raytpu.record import Recorded, RunDirectory, StepFinished, read_events

REPOSITORY = Path(__file__).parents[2]
WORKLOAD = REPOSITORY / "deploy" / "workloads" / "stdlib-gpt.yaml"
RAYTPU = Path(sys.executable).with_name("raytpu")
MARKER = "RAYTPU_TEST_STORY"
"""In the environment of every process that a story starts, so that what is left can be found."""

SMALL = (
    "train.config.steps=24",
    "train.config.global_batch=16",
    "train.config.sequence_length=64",
    "train.config.sample_tokens=0",
    "checkpoint.every_steps=6",
)


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Story:
    """Runs commands with a home and a root of their own."""

    home: Path
    root: Path
    simulation: str

    def environment(self) -> dict[str, str]:
        return os.environ | {"RAYTPU_HOME": str(self.home), MARKER: str(self.root), "NO_COLOR": "1"}

    def raytpu(self, *arguments: str, timeout_s: float = 240, cwd: Path | None = None) -> Ended:
        """Run one command to its end."""
        done = subprocess.run(
            [str(RAYTPU), *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=cwd,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def run_arguments(self, name: str, *settings: str, on: str | None = None) -> list[str]:
        """A small run of the demo's workload under a name of its own."""
        chosen = [f"name={name}", f"checkpoint.path={self.root}", *SMALL, *settings]
        sets = [word for setting in chosen for word in ("--set", setting)]
        return ["run", str(WORKLOAD), "--on", on or f"sim:{self.simulation}", *sets]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start one command and leave it running."""
        return subprocess.Popen(
            [str(RAYTPU), *arguments],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def directory(self, name: str) -> RunDirectory:
        return RunDirectory.newest(str(self.root), name)

    def losses(self, name: str, lineage: RunDirectory | None = None) -> dict[int, float]:
        """The loss of each step, from the last attempt that made it."""
        return losses_of(read_events(lineage or self.directory(name)))


def losses_of(events: list[Recorded]) -> dict[int, float]:
    steps = [each.event for each in events if isinstance(each.event, StepFinished) and each.event.metrics]
    return {step.step: step.metrics["loss"] for step in steps}


def wait_for(what: str, look: Callable[[], Any], deadline_s: float = 240) -> Any:
    """The first answer of ``look`` that is not None or False."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        answer = look()
        if answer:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"waited {deadline_s} s for {what}")


def processes_of(story: Story) -> list[psutil.Process]:
    """Live processes that the story's commands started, the simulation's own apart."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(MARKER) == str(story.root) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.fixture(scope="session")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Two v6e 2x4 slices of two hosts each, up for the whole session: a home and a name."""
    home = tmp_path_factory.mktemp("home")
    environment = os.environ | {"RAYTPU_HOME": str(home)}
    shape = ["--generation", "v6e", "--topology", "2x4", "--chips-per-host", "4", "--count", "2"]
    subprocess.run(
        [str(RAYTPU), "sim", "up", "--name", "story", *shape], env=environment, check=True, timeout=120
    )
    yield home, "story"
    subprocess.run([str(RAYTPU), "sim", "down", "--name", "story"], env=environment, check=True, timeout=60)


@dataclass(frozen=True)
class FinishedRun:
    """A small run of two slices that nothing disturbed, its workload's name, and its losses by step."""

    story: Story
    name: str
    losses: dict[int, float]


@pytest.fixture(scope="session")
def finished_run(simulation: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Other runs are compared with it; it takes half a minute, so there is one for the session."""
    home, name = simulation
    story = Story(home=home, root=tmp_path_factory.mktemp("whole"), simulation=name)
    ended = story.raytpu(*story.run_arguments("whole"))
    assert ended.code == 0, ended.err
    losses = story.losses("whole")
    assert sorted(losses) == list(range(1, 25))
    return FinishedRun(story=story, name="whole", losses=losses)


@pytest.fixture
def story(simulation: tuple[Path, str], tmp_path: Path) -> Story:
    home, name = simulation
    return Story(home=home, root=tmp_path / "runs", simulation=name)
