"""Named simulations are found again, one to a name, and stale records do no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raytpu.cluster import find, named_simulations, simulation_record
from raytpu.cluster.simulated import record_path, start_detached
from raytpu.cluster.simulated_cluster import SimulatedCluster
from raytpu.cluster.simulation_plan import SimulationPlan
from raytpu.errors import Refused, WrongRequest
from raytpu.spec import Slices


def plan(home: Path, sim_id: str = "1") -> SimulationPlan:
    return SimulationPlan(
        sim_id=sim_id,
        name="default",
        directory=str(home / "gone"),
        record_path=str(record_path("default", home)),
        detached=True,
        slices=(),
    )


def make_stale(home: Path) -> None:
    path = record_path("default", home)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"keeper_created_s": 1.0}))


def test_a_name_is_given_once(tmp_path: Path):
    """Two simulations of one name: `down` would stop one and lose the other."""
    simulation_record.claim(plan(tmp_path))

    with pytest.raises(Refused, match=r"'default' is up already.*raytpu sim down --name default"):
        simulation_record.claim(plan(tmp_path, "2"))
    assert named_simulations(tmp_path)[0].sim_id == "1"


def test_a_stale_record_gives_the_name_free(tmp_path: Path):
    """After a power cut the name must not be lost for ever."""
    simulation_record.claim(plan(tmp_path))
    make_stale(tmp_path)

    simulation_record.claim(plan(tmp_path, "2"))

    assert [(each.sim_id, each.is_live) for each in named_simulations(tmp_path)] == [("2", True)]


def test_a_refused_simulation_does_not_take_the_record_of_the_live_one(tmp_path: Path):
    """The live one would be up with nobody able to find it."""
    simulation_record.claim(plan(tmp_path))

    simulation_record.forget(str(record_path("default", tmp_path)), "2")

    assert len(named_simulations(tmp_path)) == 1


def test_a_stale_simulation_is_told_from_one_that_never_was(tmp_path: Path):
    """The first needs `down`, the second `up`."""
    with pytest.raises(WrongRequest, match=r"no simulation 'default'.*raytpu sim up"):
        find("default", tmp_path)
    simulation_record.claim(plan(tmp_path))
    make_stale(tmp_path)
    with pytest.raises(WrongRequest, match=r"ended without.*raytpu sim down"):
        find("default", tmp_path)


def test_the_address_is_known_once_all_is_up(tmp_path: Path):
    """A run on slices that are half up would find none that fits."""
    simulation_record.claim(plan(tmp_path))
    assert named_simulations(tmp_path)[0].address is None

    simulation_record.write(plan(tmp_path), "127.77.1.1:1234")

    assert named_simulations(tmp_path)[0].address == "127.77.1.1:1234"


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"name": "default"'])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, content: str):
    """Skipping it would hide a simulation that runs."""
    path = record_path("default", tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(content)

    with pytest.raises(WrongRequest, match=f"{path} is not a simulation's record"):
        named_simulations(tmp_path)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a" * 41, "a b"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str):
    """A name is not a way to write files elsewhere."""
    with pytest.raises(WrongRequest, match="expected at most 40 letters"):
        record_path(name, tmp_path)


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path):
    """`RAYTPU_HOME` with a typing error is common; a traceback of the keeper does not say so."""
    home = tmp_path / "file"
    home.write_text("")

    with pytest.raises(WrongRequest, match=f"cannot write to RAYTPU_HOME.*{home}/sims: Not a directory"):
        simulation_record.claim(plan(home))
    with pytest.raises(WrongRequest, match="cannot write to RAYTPU_HOME"):
        simulation_record.write(plan(home), "127.77.1.1:1234")
    simulation_record.forget(str(record_path("default", home)), "1")
    assert named_simulations(home) == ()


def test_a_simulation_that_cannot_be_written_down_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "file"
    home.write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(WrongRequest, match="cannot write to RAYTPU_HOME"):
        start_detached(Slices(generation="v6e", topology="1x1"), home=home)

    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_what_goes_wrong_while_clearing_away_does_not_hide_why_it_was_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "file"
    home.write_text("")

    stop = SimulatedCluster.stop

    def fail(cluster: SimulatedCluster) -> None:
        stop(cluster)
        raise Refused("processes 7 outlived SIGKILL")

    monkeypatch.setattr(SimulatedCluster, "stop", fail)

    with pytest.raises(WrongRequest, match="cannot write to RAYTPU_HOME") as caught:
        start_detached(Slices(generation="v6e", topology="1x1"), home=home)

    assert caught.value.__notes__ == [
        "clearing away what had started failed as well: processes 7 outlived SIGKILL"
    ]
