"""Slices that are JAX worlds of their own, each with the whole state, averaged host to host.

The driver's ``coordinator`` says who is a member and which steps count (its rules are
``plan.replica_protocol``), ``membership`` is a host's end of that, ``replicated_step`` and ``diloco_step``
make steps under it, ``peer_exchange`` and ``state_transfer`` move arrays between hosts, and ``controller``
replaces what is lost.
"""
