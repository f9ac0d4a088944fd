"""`make cuda-check`: machine code is counted, and the kernels of every compute capability are within their budgets."""

from __future__ import annotations

import pytest

from tightbeam.plugins.tensorrt.native import Gpu, Kernel
from tools.cuda_check import __main__ as command
from tools.cuda_check.__main__ import GPUS, WORDS, check, faults_of
from tools.cuda_check.budgets import BUDGETS, Budget
from tools.cuda_check.calls import MODELS, calls_of, plan_of
from tools.cuda_check.machine_code import Counts, counts_in, nvdisasm

PRINTED = """
//----- nvinfo : EIATTR_REGCOUNT
 .word index@(other)
 .word 0x00000010
//----- nvinfo : EIATTR_REGCOUNT
 .word index@(mine)
 .word 0x00000080
	.section	.text.other,"ax"
        /*0000*/   NOP ;
	.section	.text.mine,"ax"
.L_x_0:
        /*0000*/   @P0 BRA `(.L_x_0) ;
        /*0010*/   LDL.64 R2, [R1] ;
        /*0020*/ { @!UP0 LDS.U8 R3, [R4] ;
        /*0030*/   LDS.U16 R3, [R4] ;
        /*0040*/   EXIT ;
	.section	.nv.constant0.mine,"a"
        /*0000*/  .byte 0x00;
"""


def test_counts_are_of_one_kernel() -> None:
    assert counts_in(PRINTED, "mine") == Counts(instructions=5, registers=128, spills=1, byte_loads=1)
    assert counts_in(PRINTED, "other") == Counts(1, 16, 0, 0)
    with pytest.raises(ValueError, match="no instruction of another"):
        counts_in(PRINTED, "another")


def test_the_largest_counts_are_compared_with_a_budget() -> None:
    budget = Budget(100, 50, 2_000, "a reason")
    assert faults_of("kernel", dict(zip(WORDS, (100, 50, 2_000, 0, 0), strict=True)), budget) == []
    assert faults_of("kernel", dict(zip(WORDS, (101, 51, 2_001, 2, 3), strict=True)), budget) == [
        "kernel has 101 instructions, expected at most 100",
        "kernel has 51 registers, expected at most 50",
        "kernel has 2,001 bytes of shared memory, expected at most 2,000",
        "kernel has 2 loads and stores of spilled registers, expected at most 0",
        "kernel has 3 byte loads from shared memory, expected at most 0",
    ]
    assert "no budget" in faults_of("new kernel", {}, None)[0]


def test_the_largest_count_of_any_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"source_attention": Counts(5, 8, 0, 0), "latent_attention": Counts(3, 9, 0, 0)}
    kernels = [(folder, Kernel("new", (1, 1, 1), 32, shared, 0)) for folder, shared in zip(counts, (1, 9), strict=True)]
    monkeypatch.setattr(command, "launches_on", lambda gpu: iter(kernels))
    monkeypatch.setattr(command, "counts_of", lambda folder, name, capability: counts[folder])
    monkeypatch.setitem(BUDGETS, "new", Budget(4, 8, 8, "a reason"))
    assert [fault.split(" has ")[1].split()[0] for fault in check([GPUS["H200"]])] == ["5", "9", "9"]


def test_every_budget_is_of_a_kernel_that_is_launched() -> None:
    launched = {kernel.name for gpu in GPUS.values() for _, kernel in command.launches_on(gpu)}
    assert {name.replace("tightbeam::device::", "") for name in launched} == set(BUDGETS)


def test_plans_of_gpus_differ() -> None:
    assert len({gpu.capability for gpu in GPUS.values()}) == len(GPUS) == 7
    call = next(call for call in calls_of(MODELS["BART-large"], 8) if call.operator == "LatentAttention")
    names = {name: plan_of(call, gpu, "float16").kernels[0].name for name, gpu in GPUS.items()}
    assert "simt" in names["T4"] and "tensor_core" in names["L4"]


def test_an_unknown_capability_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"--capability 91 is unknown; expected some of 75, .*, 120"):
        command.main("90,91")


@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: f"sm_{gpu.capability}")
def test_kernels_are_within_their_budgets(gpu: Gpu) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda.bindings is not here", exc_type=ImportError)
    try:
        nvdisasm()
    except SystemExit as error:
        pytest.skip(str(error))
    assert check([gpu]) == []
