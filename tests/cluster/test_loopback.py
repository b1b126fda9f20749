"""Simulations side by side have addresses of their own."""

from __future__ import annotations

from raytpu.cluster.loopback import LoopbackNetwork


def test_two_simulations_never_share_a_network():
    """Ray tells hosts apart by address."""
    first, second = LoopbackNetwork(), LoopbackNetwork()

    assert first.head != second.head
    assert first.next_address(()).rsplit(".", 1)[0] == first.head.rsplit(".", 1)[0]
    first.close()
    second.close()


def test_a_network_can_be_claimed_again_when_its_simulation_is_gone():
    """254 simulations in a day must not use the networks up."""
    first = LoopbackNetwork()
    head = first.head
    first.close()
    second = LoopbackNetwork()

    assert second.head == head
    second.close()


def test_addresses_are_used_again_only_when_all_were_used():
    """Ray still remembers the dead host at its address for a while."""
    network = LoopbackNetwork()
    addresses = [network.next_address(()) for _ in range(249)]

    assert len(set(addresses)) == 249
    assert network.head not in addresses
    assert network.next_address(addresses[:5]) == addresses[5]
    network.close()
