"""Every published shape as its source states it: also what raytpu computes (chips and hosts) is written out.

Copied from the collection of facts that the project started from; test_published_shapes.py compares with the
collection itself where it lies beside the checkout.
"""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    generation: str
    topology: str
    chips: int
    chips_per_host: int
    hosts: int
    machine_type: str


def _row(line: str) -> Expected:
    generation, topology, chips, chips_per_host, hosts, machine_type = line.split()
    return Expected(generation, topology, int(chips), int(chips_per_host), int(hosts), machine_type)


# generation topology chips chips_per_host hosts machine_type
PUBLISHED = [
    _row(line)
    for line in """\
v4 2x2x1 4 4 1 ct4p-hightpu-4t
v4 2x2x2 8 4 2 ct4p-hightpu-4t
v4 2x2x4 16 4 4 ct4p-hightpu-4t
v4 2x4x4 32 4 8 ct4p-hightpu-4t
v4 4x4x4 64 4 16 ct4p-hightpu-4t
v4 4x4x8 128 4 32 ct4p-hightpu-4t
v4 4x8x8 256 4 64 ct4p-hightpu-4t
v4 8x8x8 512 4 128 ct4p-hightpu-4t
v4 8x8x12 768 4 192 ct4p-hightpu-4t
v4 8x8x16 1024 4 256 ct4p-hightpu-4t
v4 8x16x16 2048 4 512 ct4p-hightpu-4t
v5e 1x1 1 1 1 ct5lp-hightpu-1t
v5e 2x2 4 4 1 ct5lp-hightpu-4t
v5e 2x4 8 8 1 ct5lp-hightpu-8t
v5e 2x4 8 4 2 ct5lp-hightpu-4t
v5e 4x4 16 4 4 ct5lp-hightpu-4t
v5e 4x8 32 4 8 ct5lp-hightpu-4t
v5e 8x8 64 4 16 ct5lp-hightpu-4t
v5e 8x16 128 4 32 ct5lp-hightpu-4t
v5e 16x16 256 4 64 ct5lp-hightpu-4t
v5p 2x2x1 4 4 1 ct5p-hightpu-4t
v5p 2x2x2 8 4 2 ct5p-hightpu-4t
v5p 2x2x4 16 4 4 ct5p-hightpu-4t
v5p 2x4x4 32 4 8 ct5p-hightpu-4t
v5p 4x4x4 64 4 16 ct5p-hightpu-4t
v5p 4x4x8 128 4 32 ct5p-hightpu-4t
v5p 4x4x12 192 4 48 ct5p-hightpu-4t
v5p 4x8x8 256 4 64 ct5p-hightpu-4t
v5p 4x4x20 320 4 80 ct5p-hightpu-4t
v5p 4x8x12 384 4 96 ct5p-hightpu-4t
v5p 4x4x28 448 4 112 ct5p-hightpu-4t
v5p 8x8x8 512 4 128 ct5p-hightpu-4t
v5p 4x12x12 576 4 144 ct5p-hightpu-4t
v5p 4x8x20 640 4 160 ct5p-hightpu-4t
v5p 4x4x44 704 4 176 ct5p-hightpu-4t
v5p 8x8x12 768 4 192 ct5p-hightpu-4t
v5p 4x4x52 832 4 208 ct5p-hightpu-4t
v5p 4x8x28 896 4 224 ct5p-hightpu-4t
v5p 4x12x20 960 4 240 ct5p-hightpu-4t
v5p 8x8x16 1024 4 256 ct5p-hightpu-4t
v5p 4x4x68 1088 4 272 ct5p-hightpu-4t
v5p 8x12x12 1152 4 288 ct5p-hightpu-4t
v5p 4x4x76 1216 4 304 ct5p-hightpu-4t
v5p 8x8x20 1280 4 320 ct5p-hightpu-4t
v5p 4x12x28 1344 4 336 ct5p-hightpu-4t
v5p 4x8x44 1408 4 352 ct5p-hightpu-4t
v5p 4x4x92 1472 4 368 ct5p-hightpu-4t
v5p 4x20x20 1600 4 400 ct5p-hightpu-4t
v5p 4x8x52 1664 4 416 ct5p-hightpu-4t
v5p 12x12x12 1728 4 432 ct5p-hightpu-4t
v5p 8x8x28 1792 4 448 ct5p-hightpu-4t
v5p 4x4x116 1856 4 464 ct5p-hightpu-4t
v5p 8x12x20 1920 4 480 ct5p-hightpu-4t
v5p 4x4x124 1984 4 496 ct5p-hightpu-4t
v5p 8x16x16 2048 4 512 ct5p-hightpu-4t
v5p 4x12x44 2112 4 528 ct5p-hightpu-4t
v5p 4x8x68 2176 4 544 ct5p-hightpu-4t
v5p 4x20x28 2240 4 560 ct5p-hightpu-4t
v5p 12x12x16 2304 4 576 ct5p-hightpu-4t
v5p 4x4x148 2368 4 592 ct5p-hightpu-4t
v5p 4x8x76 2432 4 608 ct5p-hightpu-4t
v5p 4x12x52 2496 4 624 ct5p-hightpu-4t
v5p 8x16x20 2560 4 640 ct5p-hightpu-4t
v5p 4x4x164 2624 4 656 ct5p-hightpu-4t
v5p 8x12x28 2688 4 672 ct5p-hightpu-4t
v5p 4x4x172 2752 4 688 ct5p-hightpu-4t
v5p 8x8x44 2816 4 704 ct5p-hightpu-4t
v5p 12x12x20 2880 4 720 ct5p-hightpu-4t
v5p 4x8x92 2944 4 736 ct5p-hightpu-4t
v5p 4x4x188 3008 4 752 ct5p-hightpu-4t
v5p 12x16x16 3072 4 768 ct5p-hightpu-4t
v5p 4x28x28 3136 4 784 ct5p-hightpu-4t
v5p 8x20x20 3200 4 800 ct5p-hightpu-4t
v5p 4x12x68 3264 4 816 ct5p-hightpu-4t
v5p 8x8x52 3328 4 832 ct5p-hightpu-4t
v5p 4x4x212 3392 4 848 ct5p-hightpu-4t
v5p 12x12x24 3456 4 864 ct5p-hightpu-4t
v5p 4x20x44 3520 4 880 ct5p-hightpu-4t
v5p 8x16x28 3584 4 896 ct5p-hightpu-4t
v5p 4x12x76 3648 4 912 ct5p-hightpu-4t
v5p 4x8x116 3712 4 928 ct5p-hightpu-4t
v5p 4x4x236 3776 4 944 ct5p-hightpu-4t
v5p 12x16x20 3840 4 960 ct5p-hightpu-4t
v5p 4x4x244 3904 4 976 ct5p-hightpu-4t
v5p 4x8x124 3968 4 992 ct5p-hightpu-4t
v5p 12x12x28 4032 4 1008 ct5p-hightpu-4t
v5p 16x16x16 4096 4 1024 ct5p-hightpu-4t
v5p 4x20x52 4160 4 1040 ct5p-hightpu-4t
v5p 8x12x44 4224 4 1056 ct5p-hightpu-4t
v5p 8x8x68 4352 4 1088 ct5p-hightpu-4t
v5p 4x12x92 4416 4 1104 ct5p-hightpu-4t
v5p 8x20x28 4480 4 1120 ct5p-hightpu-4t
v5p 12x16x24 4608 4 1152 ct5p-hightpu-4t
v5p 4x8x148 4736 4 1184 ct5p-hightpu-4t
v5p 12x20x20 4800 4 1200 ct5p-hightpu-4t
v5p 8x8x76 4864 4 1216 ct5p-hightpu-4t
v5p 4x28x44 4928 4 1232 ct5p-hightpu-4t
v5p 8x12x52 4992 4 1248 ct5p-hightpu-4t
v5p 16x16x20 5120 4 1280 ct5p-hightpu-4t
v5p 12x12x36 5184 4 1296 ct5p-hightpu-4t
v5p 4x8x164 5248 4 1312 ct5p-hightpu-4t
v5p 12x16x28 5376 4 1344 ct5p-hightpu-4t
v5p 4x20x68 5440 4 1360 ct5p-hightpu-4t
v5p 4x8x172 5504 4 1376 ct5p-hightpu-4t
v5p 4x12x116 5568 4 1392 ct5p-hightpu-4t
v5p 8x16x44 5632 4 1408 ct5p-hightpu-4t
v5p 12x20x24 5760 4 1440 ct5p-hightpu-4t
v5p 4x28x52 5824 4 1456 ct5p-hightpu-4t
v5p 8x8x92 5888 4 1472 ct5p-hightpu-4t
v5p 4x12x124 5952 4 1488 ct5p-hightpu-4t
v5p 4x8x188 6016 4 1504 ct5p-hightpu-4t
v5p 4x20x76 6080 4 1520 ct5p-hightpu-4t
v5p 16x16x24 6144 4 1536 ct5p-hightpu-4t
v5p 12x24x24 6912 4 1728 ct5p-hightpu-4t
v5p 16x20x28 8960 4 2240 ct5p-hightpu-4t
v6e 1x1 1 1 1 ct6e-standard-1t
v6e 2x2 4 4 1 ct6e-standard-4t
v6e 2x4 8 8 1 ct6e-standard-8t
v6e 2x4 8 4 2 ct6e-standard-4t
v6e 4x4 16 4 4 ct6e-standard-4t
v6e 4x8 32 4 8 ct6e-standard-4t
v6e 8x8 64 4 16 ct6e-standard-4t
v6e 8x16 128 4 32 ct6e-standard-4t
v6e 16x16 256 4 64 ct6e-standard-4t
v7x 2x2x1 4 4 1 tpu7x-standard-4t
v7x 2x2x2 8 4 2 tpu7x-standard-4t
v7x 2x2x4 16 4 4 tpu7x-standard-4t
v7x 2x4x4 32 4 8 tpu7x-standard-4t
v7x 4x4x4 64 4 16 tpu7x-standard-4t
v7x 4x4x8 128 4 32 tpu7x-standard-4t
v7x 4x8x8 256 4 64 tpu7x-standard-4t
v7x 8x8x8 512 4 128 tpu7x-standard-4t
v7x 8x8x16 1024 4 256 tpu7x-standard-4t
v7x 8x16x16 2048 4 512 tpu7x-standard-4t
""".splitlines()
]
