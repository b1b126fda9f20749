"""The raylet's command line is edited where it is known, and not where it is not."""

from __future__ import annotations

import pytest

from raytpu.cluster.ray_node import edited_command


def test_the_value_of_an_option_is_replaced():
    """The dashboard agent of a simulated host is a stand-in."""
    command = ["raylet", "--head", "--dashboard_agent_command=python agent.py --a=b", "--node_id=1"]

    edited = edited_command(command, {"--dashboard_agent_command=": "cat"})

    assert edited == ["raylet", "--head", "--dashboard_agent_command=cat", "--node_id=1"]


def test_an_option_that_ray_no_longer_has_is_an_error():
    """Ignored, the simulation would start the real agents and be twice as slow without a word."""
    with pytest.raises(RuntimeError, match="without --num_prestart_python_workers="):
        edited_command(["raylet"], {"--num_prestart_python_workers=": "0"})
