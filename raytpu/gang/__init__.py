"""Whole slices held for one job, and one process on each of their hosts (Ray, no JAX)."""

from raytpu.gang.held import HeldHost as HeldHost
from raytpu.gang.held import HeldSlice as HeldSlice
from raytpu.gang.held import PreemptionNotice as PreemptionNotice
from raytpu.gang.holding import Holding as Holding
from raytpu.gang.holding import further_slices as further_slices
from raytpu.gang.holding import unwell_hosts as unwell_hosts
from raytpu.gang.hosts import Host as Host
from raytpu.gang.hosts import call_hosts as call_hosts
from raytpu.gang.hosts import start_hosts as start_hosts
from raytpu.gang.lease import Lease as Lease
from raytpu.gang.lease import hold as hold
from raytpu.gang.open_book import open_book as open_book
from raytpu.gang.ray_inventory import ray_inventory as ray_inventory
from raytpu.plan.book_view import BookView as BookView

__all__ = [
    "BookView",
    "HeldHost",
    "HeldSlice",
    "Holding",
    "Host",
    "Lease",
    "PreemptionNotice",
    "call_hosts",
    "further_slices",
    "hold",
    "open_book",
    "ray_inventory",
    "start_hosts",
    "unwell_hosts",
]
