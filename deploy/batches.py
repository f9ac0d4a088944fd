"""Batches of a loaded bundle: whole ones, searched to their end, and schedulers of samples that come and go."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.prompt import Prompt, first_length
from tightbeam.deploy.model_inputs import ModelInputs
from tightbeam.deploy.padding import mask_of_padding
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.runtimes.step_inputs import BeamStepper
from tightbeam.deploy.scheduling.events import SchedulerEvents
from tightbeam.deploy.scheduling.groups import GroupScheduler
from tightbeam.deploy.scheduling.scheduler import Scheduler
from tightbeam.deploy.search import SearchCallback, SearchResult, search
from tightbeam.deploy.search.callbacks import check_callback
from tightbeam.deploy.text.ragged import batch_key, join_results
from tightbeam.deploy.text.token_ids import check_batch
from tightbeam.deploy.text.tokenizer import TextCodec

__all__ = ["Batches", "check_batch_size", "check_texts_alone"]


class Batches(ModelInputs):
    """A loaded bundle that runs batches, one at a time.

    Parameters
    ----------
    bundle, runtime, codec
        Those of `ModelSettings`.
    """

    def __init__(self, bundle: Bundle, runtime: Runtime, codec: TextCodec | None) -> None:
        super().__init__(bundle, runtime, codec)
        self._lock = threading.Lock()  # held while the runtime is in use
        self.cache_bytes = (0, 0)

    def _generate(
        self,
        ids: Array,
        mask: Array,
        options: GenerationOptions,
        settings: Mapping[str, Any],
        callback: SearchCallback | None,
    ) -> SearchResult:
        """Generate from checked ids and mask [B, N]."""
        if not self.decoder_only:
            return self._run(ids, mask, options, callback)
        options, prompt = self.options_for(ids.shape[1], settings), Prompt.of(ids, mask)
        return self._run(prompt.source_ids, prompt.source_mask, options, callback, prompt)

    def _generate_ragged(
        self,
        rows: list[list[int]],
        options: GenerationOptions,
        settings: Mapping[str, Any],
        callback: SearchCallback | None,
    ) -> SearchResult:
        """Generate from rows of different lengths; those that padding would change are run in batches of their own."""
        for index, row in enumerate(rows):
            try:
                self.check_ids(row)
            except InputError as error:
                raise InputError(f"row {index} of input_ids: {error}") from None
        batches: dict[tuple[int, ...], list[int]] = {}  # indices of rows
        for index, row in enumerate(rows):
            key = batch_key(self.options_for(len(row), settings), len(row)) if self.decoder_only else ()
            batches.setdefault(key, []).append(index)
        if callback is not None and len(batches) > 1:
            raise InputError(
                "callback needs prompts that share a batch, which lengths that count the padding forbid; pass rows of "
                "one length, or max_new_tokens in place of max_length"
            )
        results = []
        for samples in batches.values():
            ids, mask = self.pad([rows[sample] for sample in samples], options)
            if self.decoder_only:  # pad tokens within a row do not count, as in a row alone
                mask &= mask_of_padding(ids, options.pad_token_id, options.eos_token_ids)
            ids, mask = check_batch(ids, mask, options, self.manifest.sizes)
            found = self._generate(ids, mask, options, settings, callback)
            results.append((samples, self.prompt_of(ids), found))
        return results[0][2] if len(results) == 1 else join_results(results, options)

    def _beginning_with(self, given: Any, count: int, settings: Mapping[str, Any]) -> list[GenerationOptions]:
        """The options of each of ``count`` samples, whose outputs begin with given tokens."""
        rows = given.tolist() if hasattr(given, "tolist") else given
        if isinstance(rows, list | tuple):
            rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
        if (
            not isinstance(rows, list | tuple)
            or len(rows) != count
            or not all(isinstance(r, list | tuple) for r in rows)
        ):
            raise InputError(
                f"decoder_input_ids does not have {count} rows of token ids; pass one row for each row of input_ids"
            )
        return [self.options_for(1, {**settings, "decoder_input_ids": list(row)}) for row in rows]

    def _run(
        self,
        source: Array,
        mask: Array,
        given: GenerationOptions | list[GenerationOptions],
        callback: SearchCallback | None,
        prompt: Prompt | None = None,
    ) -> SearchResult:
        check_callback(callback)
        each = given if isinstance(given, list) else [given] * len(source)
        options = each[0]
        P = first_length(prompt)
        positions = max(own.max_length for own in each) - P  # the last token is never fed back
        with self._lock:
            groups = options.candidate_groups
            shape = options.num_beams, positions, options.candidates, P, groups
            decoding = self._runtime.begin(source, mask, *shape, aligned=options.aligned)
            beginnings = None if prompt is None else prompt.tokens
            read = source if prompt is None else prompt.tokens
            sources = None if read.dtype.kind == "f" else read  # not of features
            keyed = _keyed(source, mask, each, prompt)
            step, keys = BeamStepper(decoding, options, prompt), decoding.alignment_keys
            result = search(step, keyed, len(source), beginnings, sources, callback, keys)
            self.cache_bytes = decoding.cache_bytes
            decoding.close()
        return result

    def scheduler(self, batch_size: int) -> Scheduler:
        """Return a scheduler without samples, for samples that come and go one by one.

        Parameters
        ----------
        batch_size : int
            The most samples in the running batch.

        Returns
        -------
        Scheduler
            It is for one thread. Other calls of this runner run between its turns.
        """
        return Scheduler(self._runtime, batch_size, self._lock)

    def group_scheduler(self, max_rows: int, events: SchedulerEvents) -> GroupScheduler:
        """Return a scheduler without samples, for samples of any settings that come and go one by one.

        Parameters
        ----------
        max_rows : int
            The most rows (samples x beams) that take steps.
        events : SchedulerEvents
            Receives what happens to samples.

        Returns
        -------
        GroupScheduler
            It is for one thread. Other calls of this runner run between its turns.
        """
        return GroupScheduler(self._runtime, max_rows, self._lock, events)


def check_batch_size(batch_size: Any, of: str) -> None:
    if not (_is_integer(batch_size) and batch_size >= 1):
        raise InputError(f"batch_size={batch_size!r} is not a number of {of}; pass 1 or more")


def check_texts_alone(options: GenerationOptions) -> None:
    """Raise GenerationError for settings that ask for more than texts."""
    if options.scoring is not None:
        asked = options.scoring.asked
        fix = "Runner.transcribe_segments" if options.aligned else "Runner.generate_outputs or Runner.generate"
        raise GenerationError(f"{asked} is more than texts; call {fix}")


def _keyed(
    source: Array, mask: Array, options: Sequence[GenerationOptions], prompt: Prompt | None
) -> list[GenerationOptions]:
    """The options of each sample, with draws that depend on its source without padding."""
    if options[0].sampling is None:
        return list(options)
    inputs = list(source)
    if prompt is not None:
        inputs = [row[skipped:] for row, skipped in zip(prompt.tokens, prompt.padding, strict=True)]
    elif source.dtype.kind != "f":
        inputs = [row[own > 0] for row, own in zip(source, mask, strict=True)]
    return [own.for_input(each) for own, each in zip(options, inputs, strict=True)]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
