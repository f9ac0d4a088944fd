"""Cores and number of actors, from the machines of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightbeam.deploy import InputError
from tightbeam.deploy.bundle.manifest import PassEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import DeviceError
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.deploy.ray.sizing import PROCESS_BYTES, ActorMemory, Actors, Machine, memory_of_actor, plan_actors

GB = 10**9


@pytest.mark.parametrize(
    ("machines", "actor_bytes", "threads", "expected"),
    [
        ([Machine(2, 16 * GB)], GB, None, Actors(2, 1)),
        ([Machine(64, 256 * GB)] * 4, 2 * GB, None, Actors(256, 1)),
        ([Machine(64, 32 * GB)], 2 * GB, None, Actors(16, 4)),
        ([Machine(64, 256 * GB), Machine(32, 32 * GB)], 2 * GB, None, Actors(32 + 16, 2)),
        ([Machine(6, 3 * GB)], 2 * GB, None, Actors(1, 6)),
        ([Machine(6, 1 * GB)], 2 * GB, None, Actors(1, 6)),
        ([Machine(6, 1 * GB)], 2 * GB, 2, Actors(3, 2)),
        ([Machine(8, 99 * GB), Machine(2, 99 * GB)], GB, 4, Actors(2, 4)),
    ],
)
def test_actors_on_cores(machines: list[Machine], actor_bytes: int, threads: int | None, expected: Actors) -> None:
    assert plan_actors(machines, ActorMemory(actor_bytes), threads=threads, gpu=False) == expected


def test_an_actor_for_each_gpu() -> None:
    machines = [Machine(64, 256 * GB, 8), Machine(2, 4 * GB)]
    actors = plan_actors(machines, ActorMemory(GB), threads=None, gpu=True)
    assert actors == Actors(8, 1, 1)
    assert (actors.text, Actors(1, 2).text, Actors(2, 1).text) == (
        "8 actors of a GPU",
        "1 actor of 2 cores",
        "2 actors of 1 core",
    )


def test_memory_grows_with_weights_and_batch() -> None:
    manifest = Bundle.load(Path(__file__).resolve().parents[2] / "data" / "bundle-format-2", verify=False).manifest
    options = resolve_settings(manifest.generation, {"max_new_tokens": 6}, manifest.sizes, speech=False).for_prompt(1)
    assert manifest.precision == "fp32"
    small, large = (memory_of_actor(manifest, options, batch_size).of(1) for batch_size in (1, 5))
    assert large - small == 4 * (small - PROCESS_BYTES - round(1.2 * manifest.weights.bytes)) > 0


def test_weights_that_a_machine_has_once() -> None:
    """The operators of int8 bundles, and of the pass ``linear``, read the mapped file."""
    manifest = Bundle.load(Path(__file__).resolve().parents[2] / "data" / "bundle-format-2", verify=False).manifest
    options = resolve_settings(manifest.generation, {"max_new_tokens": 6}, manifest.sizes, speech=False).for_prompt(1)
    whole = memory_of_actor(manifest, options, 1)
    shared = memory_of_actor(manifest.model_copy(update={"precision": "int8"}), options, 1)
    assert shared.shared_bytes == manifest.weights.bytes and whole.shared_bytes == 0
    assert whole.own_bytes - shared.own_bytes == round(1.2 * manifest.weights.bytes)
    for matched, expected in ((3, shared), (0, whole)):
        passes = (*manifest.passes, PassEntry(name="linear", matched=matched, reason="", bytes_saved=0))
        assert memory_of_actor(manifest.model_copy(update={"passes": passes}), options, 1) == expected
    assert shared.of(7) == 7 * shared.own_bytes + manifest.weights.bytes
    # weights of 2 GB, of which each of 8 actors would have its own copy
    memory = ActorMemory(GB, 2 * GB)
    assert plan_actors([Machine(8, 10 * GB)], memory, threads=None, gpu=False) == Actors(8, 1)
    assert plan_actors([Machine(8, 10 * GB)], ActorMemory(3 * GB), threads=None, gpu=False) == Actors(2, 4)


def test_errors() -> None:
    with pytest.raises(DeviceError, match="no machine of the cluster has a GPU"):
        plan_actors([Machine(2, GB)], ActorMemory(GB), threads=None, gpu=True)
    with pytest.raises(InputError, match="has 4 cores, 2 at most"):
        plan_actors([Machine(2, GB)], ActorMemory(GB), threads=4, gpu=False)
