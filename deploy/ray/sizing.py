"""Number and cores of actors, chosen by the machines of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.errors import DeviceError, InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.model.bundle_facts import cache_bytes, workload_of

__all__ = ["ActorMemory", "Actors", "Machine", "memory_of_actor", "plan_actors"]

LINEAR = "linear"
"""The pass whose operators read float32 matrices in the mapped weights file."""
PROCESS_BYTES = 400_000_000
"""Memory of an actor without weights and caches: Python, Ray, ONNX Runtime and activations."""


@dataclass(frozen=True)
class Machine:
    """The resources that a machine gives to Ray.

    Attributes
    ----------
    cores, gpus : int
    memory_bytes : int
    """

    cores: int
    memory_bytes: int
    gpus: int = 0


@dataclass(frozen=True)
class ActorMemory:
    """Memory of the actors of one machine.

    Attributes
    ----------
    own_bytes : int
        Bytes of each actor.
    shared_bytes : int
        Bytes that all actors of a machine share: pages of the mapped weights file.
    """

    own_bytes: int
    shared_bytes: int = 0

    def of(self, count: int) -> int:
        """Return the bytes of ``count`` actors of one machine, at least one."""
        return self.shared_bytes + count * self.own_bytes


@dataclass(frozen=True)
class Actors:
    """Actors of a run.

    Attributes
    ----------
    count : int
    cores : int
        Cores of each.
    gpus : int
        GPUs of each, 0 or 1.
    """

    count: int
    cores: int
    gpus: int = 0

    @property
    def text(self) -> str:
        """The actors in words."""
        each = "a GPU" if self.gpus else f"{self.cores} core{'' if self.cores == 1 else 's'}"
        return f"{self.count} actor{'' if self.count == 1 else 's'} of {each}"


def memory_of_actor(manifest: Manifest, options: GenerationOptions, batch_size: int) -> ActorMemory:
    """Estimate the memory of an actor on CPUs from above: a loaded model, and the caches of a batch of longest sources.

    The operators of a bundle in int8 or int4, and of a bundle whose products the pass ``linear`` has rewritten, read
    the weights in the mapped file, so all processes of a machine share one copy. The weights of other bundles are
    packed by ONNX Runtime, a copy in each process.
    """
    new_tokens = options.max_length - options.beginning
    workload = workload_of(manifest, batch_size=batch_size, num_beams=options.num_beams, new_tokens=new_tokens)
    own, weights = sum(cache_bytes(manifest, workload)) + PROCESS_BYTES, manifest.weights.bytes
    if manifest.has_integers or any(entry.name == LINEAR and entry.matched for entry in manifest.passes):
        return ActorMemory(own, weights)
    return ActorMemory(own + round(1.2 * weights))


def plan_actors(machines: Sequence[Machine], memory: ActorMemory, *, threads: int | None, gpu: bool) -> Actors:
    """Choose the actors.

    An actor has a GPU, or ``threads`` cores. By default it has one core, which is the least work for a token. If the
    actors of a machine would not fit into its memory, they have more cores, as few as possible.

    Parameters
    ----------
    machines : sequence of Machine
    memory : ActorMemory
    threads : int or None
        Cores of an actor.
    gpu : bool
        The actors run on GPUs.

    Returns
    -------
    Actors
        As many as the cluster has room for.

    Raises
    ------
    DeviceError
        The cluster has no GPU.
    InputError
        No machine has ``threads`` cores.
    """
    if gpu:
        count = sum(machine.gpus for machine in machines)
        if not count:
            raise DeviceError("no machine of the cluster has a GPU; leave --device and --engine out")
        return Actors(count, 1, 1)
    most = max((machine.cores for machine in machines), default=0)
    if not most or (threads or 1) > most:
        raise InputError(f"no machine of the cluster has {threads or 1} cores, {most} at most; pass fewer --threads")
    cores = threads or next((each for each in range(1, most) if _fit(machines, each, memory)), most)
    if threads is None:  # use all cores of the machines with the fewest
        cores = min(machine.cores // (machine.cores // cores) for machine in machines if machine.cores >= cores)
    return Actors(sum(machine.cores // cores for machine in machines), cores)


def _fit(machines: Sequence[Machine], cores: int, memory: ActorMemory) -> bool:
    return all(memory.of(machine.cores // cores) <= machine.memory_bytes for machine in machines)
