"""The resolved settings of one generation.

Source: transformers 5.24 `GenerationConfig`. Field names and their meaning are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import Fix, GenerationError, Setting
from tightbeam.deploy.generation.confidence import Measured
from tightbeam.deploy.generation.fields import ATTENTION
from tightbeam.deploy.generation.recording import RecordingSettings
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.generation.scoring import Scoring
from tightbeam.deploy.generation.stop_strings import StopStrings
from tightbeam.deploy.generation.timestamps import TimestampRules
from tightbeam.deploy.generation.vad import VadParameters
from tightbeam.deploy.tries.trie import Trie

__all__ = ["CHOSEN", "EarlyStopping", "GenerationOptions"]

EarlyStopping: TypeAlias = bool | Literal["never"]
MOST_CANDIDATES = 248
"""The largest ``top_k`` that a step's candidates are taken for; beyond it, whole rows are cheaper."""
TIES = 8
"""Candidates beyond ``top_k``, which show that no more tokens equal the last one."""
CHOSEN = -1
"""Placeholder in a prompt for a token that the model chooses among some."""


SOURCE_SETTINGS: dict[str, object] = {"encoder_no_repeat_ngram_size": 0}
"""The settings whose processors look at the tokens of a source or prompt, and the values that ask for nothing."""


@dataclass(frozen=True)
class GenerationOptions:
    """Resolved settings of one generation. Lengths count all tokens of a row, start token or prompt included.

    Attributes
    ----------
    vocab_size : int
        Tokens that the model scores.
    num_beams : int
        M, rows of a sample: beams; 1 in greedy search; with sampling without beams the sequences returned, which are
        drawn side by side.
    num_return_sequences : int
        Sequences returned for each sample, at most ``num_beams``.
    length_penalty : float
        A finished score is divided by (new tokens) ** length_penalty.
    early_stopping : bool or "never"
        Condition that ends a sample. True: M beams are finished. False: the best running beam, at its present length,
        cannot beat the worst finished one. "never": it cannot at any length.
    min_length : int
        No end-of-sequence token before this length.
    max_length : int
        The length at which every row ends.
    limited_by : str
        The field that limits the length, ``max_new_tokens`` or ``max_length``; empty if neither is set.
    no_repeat_ngram_size : int
        No n-gram of this size occurs twice in a row; 0 is off.
    encoder_no_repeat_ngram_size : int
        No n-gram of this size of the source, or of a decoder-only model's prompt, occurs in a row; 0 is off.
    repetition_penalty : float
        Factor on the scores of tokens already in the row; 1.0 is off.
    forced_bos_token_id : int or None
        The token after a row's first one.
    forced_eos_token_ids : tuple of int
        The last token at ``max_length`` is one of these; empty is off.
    eos_token_ids : tuple of int
        Tokens that end a sequence. Without one, all rows run to ``max_length``.
    pad_token_id : int or None
        Token that fills rows after their end; None only without an end-of-sequence token.
    beginning : int
        P, the tokens that every row begins with.
    prompt : tuple of int
        Those tokens, the start token first, with `CHOSEN` for the token that the model chooses. Empty if rows have
        prompts of their own.
    choices : tuple of int
        The tokens among which the model chooses.
    bad_words_ids : tuple of tuple of int
        Token sequences that must not occur.
    suppress_tokens : tuple of int
        Tokens that must not occur.
    begin_suppress_tokens : tuple of int
        Tokens that must not come first, at the length ``begin``.
    sampling : Sampling or None
        How tokens are drawn; None takes the best tokens. It does not count when options are compared.
    timestamps : TimestampRules or None
        The rules of a speech model's timestamps; None without timestamps.
    scoring : Scoring or None
        Scores of single tokens that results have; None for no scores.
    measured : Measured or None
        Measures of a speech model's confidence; None measures nothing.
    recording : RecordingSettings or None
        Settings of a whole recording; None for a text model.
    vad : VadParameters or None
        How speech is found in a whole recording of a model without windows; None takes all sound.
    num_beam_groups : int
        Groups of the beams in diverse beam search, all of one size; 1 in any other search.
    diversity_penalty : float
        Number taken off the score of a token for each beam of an earlier group that has just chosen it.
    samples_beams : bool
        True for beam sampling, which draws the continuations of beams.
    force_words_ids : tuple of tuple of tuple of int
        Words that must occur, each with its alternatives; empty forces none.
    given : int
        The number of last tokens of ``prompt`` that are from ``decoder_input_ids``. They follow the trie from its root.
    draft : tuple of int
        A guess at the tokens behind ``prompt``, which changes no token. It does not count when options are compared.
    trie : Trie or None
        The sequences that may come from the length ``root`` on; None allows all.
    stop_strings : StopStrings or None
        Texts, each of which ends a sequence.
    return_attention : bool
        True if results have the attention of each new token to each source token.
    renormalize : bool
        True if beams are ranked by log-probabilities that sum to 1 again after all other processors.
    """

    vocab_size: int
    num_beams: int
    num_return_sequences: int
    length_penalty: float
    early_stopping: EarlyStopping
    min_length: int
    max_length: int
    limited_by: str
    no_repeat_ngram_size: int
    encoder_no_repeat_ngram_size: int
    repetition_penalty: float
    forced_bos_token_id: int | None
    forced_eos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    beginning: int
    prompt: tuple[int, ...]
    choices: tuple[int, ...]
    bad_words_ids: tuple[tuple[int, ...], ...]
    suppress_tokens: tuple[int, ...]
    begin_suppress_tokens: tuple[int, ...]
    sampling: Sampling | None = field(default=None, compare=False)
    timestamps: TimestampRules | None = None
    scoring: Scoring | None = None
    measured: Measured | None = None
    recording: RecordingSettings | None = None
    vad: VadParameters | None = None
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    samples_beams: bool = False
    force_words_ids: tuple[tuple[tuple[int, ...], ...], ...] = ()
    given: int = 0
    draft: tuple[int, ...] = field(default=(), compare=False)
    trie: Trie | None = None
    stop_strings: StopStrings | None = None
    return_attention: bool = False
    renormalize: bool = False

    @property
    def candidates(self) -> int:
        """C, the continuations of each sample: enough that M stay open if every end-of-sequence token is among them.

        In diverse beam search each group has C of its own. They also cover the tokens that can be penalised: in each
        row, at most as many as there are beams in other groups. Greedy search takes the best one.

        With ``renormalize`` there is one more, which tells whether all that count are among them
        (`deploy.search.processors.renormalize`).

        With sampling among candidates they are the tokens that each row keeps: a power of two, so that samples of
        different settings share batches.
        """
        if self.samples_candidates:
            assert self.sampling is not None
            return min(self.vocab_size, 1 << (self.sampling.top_k + TIES - 1).bit_length())
        size = self.num_beams // self.num_beam_groups
        count = (max(2, 1 + len(self.eos_token_ids)) + self.num_beams - size) * size
        if self.sampling is not None:
            return min(count, self.vocab_size)
        count = 1 if self.num_beams == 1 else count
        return count + 1 if self.renormalize and count < self.vocab_size else count

    @property
    def samples_candidates(self) -> bool:
        """True if tokens are drawn among the candidates of a step, since each row or beam keeps few tokens."""
        alone = self.num_beams == 1 or self.samples_beams
        few = self.sampling is not None and alone and 0 < self.sampling.top_k <= MOST_CANDIDATES
        return few and self.timestamps is None and self.measured is None

    @property
    def candidate_groups(self) -> int:
        """Groups of a sample's rows with candidates of their own: groups of beams, or in beam sampling each beam."""
        return self.num_beams if self.samples_beams and self.samples_candidates else self.num_beam_groups

    @property
    def drawn(self) -> int:
        """The continuations that a step of beam search takes, or that one of beam sampling draws."""
        return max(2, 1 + len(self.eos_token_ids)) * self.num_beams

    @property
    def alternatives(self) -> int:
        """The most alternatives of tokens that the search holds."""
        alternatives = 0 if self.scoring is None else self.scoring.alternatives
        return alternatives * self.num_beams * (self.max_length - self.beginning)

    @property
    def unobserved(self) -> int:
        """The number of first tokens of ``prompt`` behind which nothing looks at the decoder's output."""
        if self.trie is not None or not self.prompt:
            return 0
        looked_at = [len(self.prompt)]
        if CHOSEN in self.prompt:
            looked_at.append(self.prompt.index(CHOSEN))
        if self.measured is not None:
            looked_at.append(self.measured.start + 1)
        return min(looked_at) - 1

    @property
    def drafted(self) -> tuple[int, ...]:
        """The tokens of a row that follows the draft, as far as the decoder may read it; empty without a draft."""
        if not self.draft or self.trie is not None or CHOSEN in self.prompt:
            return ()
        return (*self.prompt, *self.draft)[: self.max_length - 1]

    @property
    def rows_asked(self) -> str:
        """The setting that asks for M rows, as errors show it."""
        several = self.sampling is not None and not self.samples_beams
        return f"{'num_return_sequences' if several else 'num_beams'}={self.num_beams}"

    def for_input(self, *source: Sequence[int] | Array, entropy: bytes = b"") -> GenerationOptions:
        """Return these options for one input, on which its draws depend.

        Parameters
        ----------
        *source : sequence of int or array
            Token ids without padding, or float32 features.
        entropy : bytes
            Random bytes for the draws, read if no seed is set. By default the system gives them.

        Returns
        -------
        GenerationOptions
        """
        if self.sampling is None:
            return self
        return replace(self, sampling=self.sampling.for_input(*source, entropy=entropy))

    def without_source_tokens(self, source: str) -> GenerationOptions:
        """Return the same options for a source without tokens.

        Parameters
        ----------
        source : str
            The kind of source, as the error names it.

        Returns
        -------
        GenerationOptions

        Raises
        ------
        GenerationError
            A setting reads a source's tokens.
        """
        if (name := self.reads_source) is not None:
            problem = f"is about a source's tokens, and {source} has none"
            fix = Fix("pass {}", Setting(name, SOURCE_SETTINGS[name]))
            raise GenerationError(problem, field=name, value=getattr(self, name), fix=fix)
        return self

    @property
    def reads_source(self) -> str | None:
        """The setting whose processor looks at the source's tokens; None if no such setting asks for something."""
        asked = (name for name, nothing in SOURCE_SETTINGS.items() if getattr(self, name) != nothing)
        return next(asked, None)

    @property
    def kind(self) -> str:
        """The kind of search. The samples of one batch share it."""
        return f"{self._search}, aligned" if self.aligned else self._search

    @property
    def _search(self) -> str:
        if self.sampling is not None:
            drawn = "among candidates" if self.samples_candidates else "from rows"
            return f"drawn beams {drawn}" if self.samples_beams else drawn
        if self.num_beam_groups > 1:
            return f"{self.num_beam_groups} groups of beams"
        if self.force_words_ids:
            return "beams with forced words"
        search = "beams" if self.normalize else "greedy"
        return f"{search} from rows" if self.reads_logits else search

    @property
    def aligned(self) -> bool:
        """True if the attention or the times of tokens are asked for, so that each step gives the queries of the
        alignment heads."""
        return self.return_attention or (self.scoring is not None and self.scoring.times)

    @property
    def beside_texts(self) -> str:
        """The setting that asks for more of a result than texts; empty if none does."""
        if self.return_attention:
            return f"{ATTENTION}=True"
        return "" if self.scoring is None else self.scoring.asked

    @property
    def reads_logits(self) -> bool:
        """True if the search reads all scores of a row, in case the runtime gives them."""
        asked = (self.sampling, self.timestamps, self.scoring, self.measured)
        named = self.force_words_ids or self.choices
        return bool(named) or self.renormalize or any(each is not None for each in asked)

    @property
    def needs_logits(self) -> str:
        """The setting that needs all scores of a row; empty if candidates suffice."""
        if self.timestamps is not None:
            return "return_timestamps=True"
        if self.measured is not None:
            return "logprob_threshold"
        if self.renormalize:
            return "renormalize_logits=True"
        if self.force_words_ids:
            return "force_words_ids"
        if self.sampling is None and self.scoring is not None:
            return self.scoring.asked
        if self.sampling is None or self.samples_candidates:
            return ""
        if self.num_beams > 1 and not self.samples_beams:
            return self.rows_asked
        return f"top_k={self.sampling.top_k}"

    @property
    def without_logits(self) -> Fix:
        """The fix for a runtime without logits."""
        if self.timestamps is not None:
            return Fix("pass {}", Setting("return_timestamps", False))
        if self.renormalize and self.measured is None:
            return Fix("pass {}", Setting("renormalize_logits", False))
        if self.sampling is None or self.measured is not None:
            return Fix("leave it out")
        few = Setting("top_k", 1)
        if self.num_beams > 1 and not self.samples_beams:
            return Fix(f"pass {{}} to {MOST_CANDIDATES} and {{}}", few, Setting("num_return_sequences", 1))
        return Fix(f"pass {{}} to {MOST_CANDIDATES}", few)

    @property
    def begin(self) -> int:
        """The length before the first token that is not forced. ``begin_suppress_tokens`` count at this length."""
        return self.beginning + (self.beginning == 1 and self.forced_bos_token_id is not None)

    @property
    def root(self) -> int:
        """The length at which rows are at the root of the trie.

        It is ``begin`` without the tokens of ``decoder_input_ids``. The first of these counts if it would be forced.
        """
        if not self.given:
            return self.begin
        start = self.beginning - self.given
        return start + (start == 1 and self.prompt[start] == self.forced_bos_token_id)

    @property
    def normalize(self) -> bool:
        """True if scores are log-probabilities (beam search), False if they are logits (greedy search)."""
        return self.num_beams > 1 and (self.sampling is None or self.samples_beams)

    def forced_score(self, count: int) -> np.float32:
        """Return the score of each of some tokens, one of which must follow.

        Parameters
        ----------
        count : int
            The number of these tokens.

        Returns
        -------
        np.float32
            0, or with ``renormalize`` -log(count).
        """
        return np.float32(-math.log(count) if self.renormalize and count else 0)

    @property
    def fill_token_id(self) -> int:
        """The token after the end of a row in beam search.

        It is the pad token, or the end-of-sequence token if the pad token is 0. In diverse beam search and with
        forced words it is always the pad token.
        """
        if (self.num_beam_groups > 1 or self.force_words_ids) and self.pad_token_id is not None:
            return self.pad_token_id
        return (self.pad_token_id or self.eos_token_ids[0]) if self.eos_token_ids else -1
