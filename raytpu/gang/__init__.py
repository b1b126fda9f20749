"""Whole slices held for one job, and one process on each of their hosts (Ray, no JAX)."""

from raytpu.gang.hosts import Host as Host
from raytpu.gang.hosts import call_hosts as call_hosts
from raytpu.gang.hosts import start_hosts as start_hosts
from raytpu.gang.reservation import HeldGang as HeldGang
from raytpu.gang.reservation import hold_slices as hold_slices

__all__ = ["HeldGang", "Host", "call_hosts", "hold_slices", "start_hosts"]
