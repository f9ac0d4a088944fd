"""The class for ``Dataset.map_batches`` of Ray Data: an actor loads the bundle once, and appends columns to tables."""

from __future__ import annotations

import math
import os
import warnings
from typing import Any

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import InputError, NoEffectWarning
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.sources import check_count
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.ray.library import optional_library
from tightbeam.deploy.ray.recordings import recordings_of_values, run_sound_rows
from tightbeam.deploy.ray.rows import RowSettings, lines_of_values, run_rows
from tightbeam.deploy.ray.table import check_without_attention, with_results
from tightbeam.deploy.text.truncation import Truncation, checked_truncation

__all__ = ["Generate", "assigned_cores", "load_model"]


class Generate:
    """Generate for a column of a Ray dataset, in ``Dataset.map_batches(Generate, batch_format="pyarrow", ...)``.

    Each actor loads the bundle once, and has ``num_cpus`` cores for itself. Leave a core of the cluster to the steps
    that read and write the dataset: if actors have all cores, these steps wait for ever. Rows join the running batch
    one by one. It drains at the end of each batch of the dataset, so pass large ones, such as 256 rows.

    Parameters
    ----------
    bundle : str or path
        The bundle folder, by a path that every machine has.
    column : str
        The column of the texts; for a speech model, of the names or the contents (bytes) of audio files.
    prefix : str
        Beginning of the names of the new columns.
    ids : bool
        The column holds lists of token ids, in place of texts.
    truncate : bool or str
        Cut texts that are longer than the model's positions, which is an error of the row otherwise: True at the
        beginning for a decoder-only model and else at the end; or "left" or "right".
    batch_size : int
        Rows in the running batch, at most.
    max_rows : int, optional
        Rows of the decoder (rows of the dataset x beams) in the running batch, in place of ``batch_size``, for rows
        with beams of their own.
    settings_column : str, optional
        The column with settings of each row alone, which override ``settings``: a struct or a map, whose null fields
        are ignored, or the text of a JSON object; null for a row without. A row with wrong settings gets an error.
    engine : str
        ``engine`` of `Runner.load`.
    device : str
        ``device`` of `Runner.load`.
    threads : int, optional
        Threads of one operator; by default ``num_cpus`` of the actor.
    **settings
        Arguments of ``model.generate``, by the same names.

    Raises
    ------
    BundleError
        The bundle cannot be read, or cannot be run on this machine.
    GenerationError
        A setting is unknown, not supported or impossible.
    InputError
        The model reads images, or an argument is out of range.

    Examples
    --------
    >>> generate = Generate("demo-dedup", column="report", num_beams=4)
    >>> generate(pyarrow.table({"report": reports})).column_names
    ['report', 'generated_text', 'generated_score', 'generated_tokens', 'generated_finish_reason',
     'generated_source_tokens', 'generated_new_tokens', 'generated_error', 'generated_truncated']
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        column: str = "text",
        *,
        prefix: str = "generated_",
        ids: bool = False,
        truncate: Truncation = False,
        batch_size: int = 8,
        max_rows: int | None = None,
        settings_column: str | None = None,
        engine: str = "onnxruntime",
        device: str = "cpu",
        threads: int | None = None,
        **settings: Any,
    ) -> None:
        check_count("batch_size", batch_size, "rows")
        if max_rows is not None:
            check_count("max_rows", max_rows, "rows")
        if settings_column == column:
            raise InputError(
                f"column and settings_column are both {column!r}; pass the column of the settings, or None"
            )
        on_cpu = device == "cpu" and engine == "onnxruntime"
        if threads is None and on_cpu:
            threads = assigned_cores()
        speech = Bundle.load(bundle, verify=False).manifest.has_windows
        effective, notes = remove_settings_without_effect(settings, speech=speech)
        for note in notes:
            warnings.warn(f"{note}; leave it out", NoEffectWarning, stacklevel=2)
        self._settings = RowSettings(
            effective, ids, checked_truncation(truncate), batch_size, max_rows, settings_column
        )
        self._model = load_model(bundle, self._settings, engine=engine, device=device, threads=threads)
        self._column, self._prefix = column, prefix
        options = self._model.settings.options(effective)
        check_without_attention(options)
        self._scoring = options.scoring

    def __call__(self, table: Any) -> Any:
        """Generate for each row.

        Parameters
        ----------
        table : pyarrow.Table
            The rows. The result has all of its columns, so a row can be identified.

        Returns
        -------
        pyarrow.Table
            With ``text``, ``score``, ``tokens``, ``finish_reason``, ``source_tokens``, ``new_tokens``, ``error`` and
            ``truncated`` under the prefix, and ``token_scores`` and ``alternatives`` if the settings ask for them; for
            a speech model also ``language``, ``language_probability`` and ``segments``. A row that could not be run has
            the reason as ``error``, which is null in other rows.

        Raises
        ------
        InputError
            The table is not an Arrow table, or lacks the column.
        BundleError
            The runtime failed for a reason that does not depend on a row.
        """
        if not isinstance(table, optional_library("pyarrow").Table):
            raise InputError(f"the rows are {type(table).__name__}; pass batch_format='pyarrow' to map_batches")
        names, own = table.column_names, self._settings.field
        for name in (self._column, *([] if own is None else [own])):
            if name not in names:
                raise InputError(f"the dataset has no column {name!r}, its columns are {', '.join(names)}")
        values = table.column(self._column).to_pylist()
        settings = None if own is None else [_settings(value) for value in table.column(own).to_pylist()]
        results = self._run(values, settings, own)
        for result in results:
            self._refuse_columns(result)
        for note in dict.fromkeys(note for result in results for note in result.notes):
            warnings.warn(f"settings of rows: {note}; leave it out", NoEffectWarning, stacklevel=2)
        how = {"several": own is not None, "sound": self._model.is_speech}
        return with_results(table, results, self._prefix, self._scoring, **how)

    def _run(self, values: list[Any], settings: list[Any] | None, own: str | None) -> list[InputResult]:
        """Run the values of the column, with the settings of each row alone in the column ``own``."""
        model, common = self._model, self._settings
        if model.is_speech:
            beams = model.settings.options(common.generation).num_beams
            return run_sound_rows(model, recordings_of_values(values, settings, own), common, beams)
        columns = {self._column: values, **({} if own is None or settings is None else {own: settings})}
        return run_rows(model, lines_of_values(columns), common, name=self._column)

    def _refuse_columns(self, result: InputResult) -> None:
        """Replace the result of a row that asked for more columns by an error: all tables have the same columns."""
        scoring = self._scoring
        if result.token_scores is not None and not (scoring and scoring.tokens):
            asked = "return_token_scores"
        elif result.alternatives is not None and not (scoring and scoring.alternatives):
            asked = "return_alternatives"
        else:
            return
        result.error = f"{asked} of a row needs a column of all rows; pass {asked} to Generate"
        result.texts, result.scores, result.sequences, result.finish_reasons = None, None, [], None


def _settings(value: Any) -> Any:
    """Return the settings of a row for JSON: the fields of a struct or a map that are not null."""
    if isinstance(value, list) and all(isinstance(pair, tuple) for pair in value):  # a map
        value = dict(value)
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


def load_model(
    bundle: str | os.PathLike[str], settings: RowSettings, *, engine: str, device: str, threads: int | None
) -> Model:
    """Load a bundle, and check that it can run rows with these settings.

    Raises
    ------
    BundleError, GenerationError, InputError
        As for `Generate`.
    """
    model = Model.load(bundle, engine=engine, device=device, threads=threads)
    model.bundle.wait_for_weights()
    if model.reads_images:
        raise InputError("this is a model of images, and rows are texts or sound; use run-model without --ray")
    if model.is_speech and (settings.ids or settings.truncate):
        raise InputError("ids and truncate are for texts, this is a speech model; leave them out")
    model.settings.options(settings.generation)
    if not settings.ids and not model.is_speech:
        model.text.require_tokenizer()
    return model


def assigned_cores() -> int | None:
    """Return the cores that Ray gives the present actor, at least one; None outside of an actor."""
    ray = optional_library("ray")
    if not ray.is_initialized():
        return None
    cores: float = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
    return max(1, math.ceil(cores))
