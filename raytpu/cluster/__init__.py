"""Ray clusters to run on: simulated slices, and what a connected cluster has. Imports no JAX."""

from raytpu.cluster.simulated import DEFAULT_HOME as DEFAULT_HOME
from raytpu.cluster.simulated import find as find
from raytpu.cluster.simulated import named_simulations as named_simulations
from raytpu.cluster.simulated import simulate as simulate
from raytpu.cluster.simulated import start_detached as start_detached
from raytpu.cluster.simulated import stop as stop
from raytpu.cluster.simulated_cluster import SimulatedCluster as SimulatedCluster
from raytpu.cluster.simulated_cluster import SimulatedHost as SimulatedHost
from raytpu.cluster.simulated_cluster import SimulatedSlice as SimulatedSlice
from raytpu.cluster.simulation_plan import NodeOptions as NodeOptions
from raytpu.cluster.simulation_record import SimulationRecord as SimulationRecord

__all__ = [
    "DEFAULT_HOME",
    "NodeOptions",
    "SimulatedCluster",
    "SimulatedHost",
    "SimulatedSlice",
    "SimulationRecord",
    "find",
    "named_simulations",
    "simulate",
    "start_detached",
    "stop",
]
