"""A training state as a flat dict of arrays, and as a fingerprint that can be compared without arrays.

Orbax gives custom nodes (optax tuples, NNX states) back as plain dicts and lists. A flat dict of
``path → array`` is the same for every JAX library, so that is what is stored; the tree itself always comes
from the program that restores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from raytpu.errors import CheckpointMismatch, SpecError

SHOWN = 5
"""Differences listed in a message before the rest is counted."""

Fingerprint = dict[str, str]
"""Path of a leaf → its dtype and shape, such as ``"float32[128,512]"``."""


def flatten_state(state: Any) -> tuple[dict[str, jax.Array], Any]:
    """``state`` as ``{path: array}``, in tree order, with random keys as their raw data; and its treedef.

    Raises:
        SpecError: leaves that cannot be saved from every process, all named.
    """
    leaves, treedef = _paths(state)
    refuse((path, why) for path, leaf in leaves.items() if (why := _why_not_saved(leaf)))
    return {
        path: jax.random.key_data(leaf) if is_key(leaf) else leaf for path, leaf in leaves.items()
    }, treedef


def fingerprint(like: Any) -> Fingerprint:
    """What a checkpoint of ``like`` must look like. ``like`` holds arrays or ``ShapeDtypeStruct``."""
    leaves, _ = _paths(like)
    return {path: describe_leaf(leaf) for path, leaf in leaves.items()}


def restore_targets(like: Any) -> tuple[dict[str, jax.ShapeDtypeStruct], Any]:
    """Where each leaf of a checkpoint goes: shape, dtype and the sharding of the *current* mesh.

    Raises:
        SpecError: leaves without a sharding, all named.
    """
    leaves, treedef = _paths(like)
    refuse(
        (path, "a ShapeDtypeStruct without a sharding; pass sharding=NamedSharding(mesh, spec)")
        for path, leaf in leaves.items()
        if getattr(leaf, "sharding", None) is None
    )
    return {path: _target(leaf) for path, leaf in leaves.items()}, treedef


def unflatten_state(arrays: Mapping[str, jax.Array], like: Any, treedef: Any) -> Any:
    """The tree of ``like`` with the restored arrays, random keys wrapped again."""
    leaves, _ = _paths(like)
    restored = [
        jax.random.wrap_key_data(arrays[path], impl=_key_impl(leaf)) if is_key(leaf) else arrays[path]
        for path, leaf in leaves.items()
    ]
    return jax.tree_util.tree_unflatten(treedef, restored)


def check_fingerprint(where: str, saved: Fingerprint, wanted: Fingerprint) -> None:
    """Compare a checkpoint with the state that wants to restore it.

    Raises:
        CheckpointMismatch: the first few differences and how many there are.
    """
    differences = [
        f"{path}: the checkpoint has {saved[path]}, the model {wanted[path]}"
        for path in saved
        if path in wanted and saved[path] != wanted[path]
    ]
    differences += [f"{path}: only in the model ({wanted[path]})" for path in wanted if path not in saved]
    differences += [f"{path}: only in the checkpoint ({saved[path]})" for path in saved if path not in wanted]
    if differences:
        raise CheckpointMismatch(
            f"{where} holds another model: {len(differences)} of {len(saved | wanted)} leaves differ\n"
            f"{shown(differences)}\n"
            "  train the model that was saved, or start anew with --fresh"
        )


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed random key (``jax.random.key``), which storage knows only as integers."""
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def describe_leaf(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(str(size) for size in leaf.shape)}]"


def shown(problems: list[str]) -> str:
    """The first few, one a line, and the number of the others."""
    rest = len(problems) - SHOWN
    return "\n".join([*(f"  {p}" for p in problems[:SHOWN]), *([f"  … and {rest} more"] if rest > 0 else [])])


def refuse(problems: Iterable[tuple[str, str]]) -> None:
    listed = [f"{path}: {why}" for path, why in problems]
    if listed:
        raise SpecError(f"{len(listed)} leaves of the state cannot be saved or restored:\n{shown(listed)}")


def _paths(tree: Any) -> tuple[dict[str, Any], Any]:
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}, treedef


def _why_not_saved(leaf: Any) -> str:
    if not isinstance(leaf, jax.Array):
        return (
            f"a {type(leaf).__module__}.{type(leaf).__qualname__}, expected a jax.Array; "
            "make it one inside jit, or with jax.device_put onto the mesh"
        )
    if jax.process_count() > 1 and leaf.is_fully_addressable:
        return (
            f"lives on process {jax.process_index()} alone ({leaf.sharding}); create it inside jit with "
            "out_shardings on the mesh (optimizer.init outside jit makes such arrays)"
        )
    return ""


def _target(leaf: Any) -> jax.ShapeDtypeStruct:
    if is_key(leaf):
        raw = jax.eval_shape(jax.random.key_data, leaf)
        # Sharded over the dimensions of the key; each key's own words stay together.
        return jax.ShapeDtypeStruct(raw.shape, raw.dtype, sharding=leaf.sharding)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _key_impl(leaf: Any) -> Any:
    """``jax.random.key_impl`` for a ``ShapeDtypeStruct`` too."""
    seen: list[Any] = []
    jax.eval_shape(lambda key: seen.append(jax.random.key_impl(key)), leaf)
    return seen[0]
