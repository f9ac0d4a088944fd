"""The static model of the CUDA kernels: SASS, control flow, trip counts, plans and floors, without nvdisasm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tightbeam.plugins.ops import OPERATORS
from tools.cuda_model.budgets import Budget
from tools.cuda_model.check import Largest, faults_of
from tools.cuda_model.costs import cost_of, is_byte_load, is_spill, kind_of
from tools.cuda_model.flow import Flow, flow_of
from tools.cuda_model.gpus import CHECKED, GPUS
from tools.cuda_model.hopper import SHAPES, Tile
from tools.cuda_model.model import plan_of
from tools.cuda_model.page import page
from tools.cuda_model.parameters import arguments_of, template_values
from tools.cuda_model.sass import Instruction, Listing, parse, reduced
from tools.cuda_model.shapes import MODELS, OpCall, calls_of, shared_rows
from tools.cuda_model.trips import Names, evaluate, header_trips, trips_of
from tools.gpu._kernels.attention import BeamLatentWork, BeamWork, LatentWork, SourceWork, _ancestry, _kept_rows

DATA = Path(__file__).resolve().parents[1] / "data" / "sass"
NAMES = {"width": 1000, "rows": 3, "block": 128}


@pytest.fixture
def listing() -> Listing:
    """A kernel with a loop in another one, a division with its slow path, and an early end; see loop.cu."""
    return parse((DATA / "loop.sass").read_text().replace("loop.cu", str(DATA / "loop.cu")))


@pytest.fixture
def flow(listing: Listing) -> Flow:
    return flow_of(listing)


def instruction(opcode: str, operands: str = "", guard: str = "") -> Instruction:
    return Instruction(0, guard, opcode, operands, ())


def test_instructions(listing: Listing) -> None:
    assert listing.registers == 20
    assert len(listing.instructions) == 68
    assert listing.instructions[listing.cold].address == 0x3E0, "the slow path of the division"
    ending = listing.instructions[3]
    assert (ending.guard, ending.opcode, ending.target) == ("@!P0", "EXIT", None)
    doubling = next(one for one in listing.instructions if one.name == "FADD")
    assert [line for _, line in doubling.places] == [2, 9]
    assert "return value + value;" in next(doubling.lines())
    assert listing.instructions[listing.labels[".L_x_5"]].address == 0x140


def test_reduced_keeps_one_kernel() -> None:
    text = (
        "//----- nvinfo : EIATTR_REGCOUNT\n .word index@(other)\n .word 0x00000010\n"
        "//----- nvinfo : EIATTR_REGCOUNT\n .word index@(mine)\n .word 0x00000080\n"
        '\t.section\t.text.other,"ax"\n        /*0000*/   NOP ;\n'
        '\t.section\t.text.mine,"ax"\n.L_x_0:\n        /*0000*/   @P0 BRA `(.L_x_0) ;\n        /*0010*/   EXIT ;\n'
        '\t.section\t.nv.constant0.mine,"a"\n        /*0000*/  .byte 0x00;\n'
    )
    found = parse(reduced(text, "mine"))
    assert found.registers == 128
    assert [one.opcode for one in found.instructions] == ["BRA", "EXIT"]


def test_nothing_to_read() -> None:
    with pytest.raises(ValueError, match="no instruction"):
        parse("// registers: 8\n")


def test_blocks_and_loops(flow: Flow) -> None:
    by_header = {flow.blocks[loop.header].instructions[0].address: loop for loop in flow.loops}
    assert by_header.keys() == {0x80, 0x140, 0x2F0}
    assert by_header[0x140].parent is by_header[0x2F0].parent is by_header[0x80]
    assert by_header[0x80].parent is None
    divided = next(block for block in flow.blocks if block.instructions[-1].opcode == "BSYNC" and block.index == 8)
    assert divided.after == (9,)


def test_ordinary_path(flow: Flow) -> None:
    passed = {one.opcode for index in flow.path() for one in flow.blocks[index].instructions}
    assert "BAR.SYNC.DEFER_BLOCKING" in passed
    assert "CALL.REL.NOINC" not in passed and "FADD" not in passed, "the way without the division is shorter"
    plain = {block.index for block in flow.blocks for one in block.instructions if one.address == 0x2C0}
    passed = {
        one.opcode for index in flow.path(lambda block: block.index in plain) for one in flow.blocks[index].instructions
    }
    assert "FADD" in passed, "the other way is cold"


def test_trip_counts(flow: Flow) -> None:
    found = trips_of(flow, Names(NAMES, ""), {})
    counts = {
        flow.blocks[loop.header].instructions[0].address: n for loop, n in zip(flow.loops, found.counts, strict=True)
    }
    assert counts == {0x80: 3, 0x140: 8, 0x2F0: 8}
    assert found.unknown == {}
    unknown = trips_of(flow, Names({"width": 1000, "block": 128}, ""), {})
    assert ["row < rows" in line for line in unknown.unknown.values()] == [True]
    ruled = trips_of(flow, Names(NAMES, ""), {"row < rows": "2 * rows"})
    assert max(ruled.counts) == 8 and 6 in ruled.counts


@pytest.mark.parametrize(
    ("line", "trips"),
    [
        ("for (int i = threadIdx.x; i < 2 * 16 * PACKS; i += blockDim.x) {", 2),
        ("for (int begin = problem.begin; begin < problem.end; begin += POSITIONS, stage ^= 1) {", 4),
        ("for (int distance = lanes / 2; distance > 0; distance /= 2)", 3),
        ("for (int distance = lanes; distance < WARP; distance *= 2)", 2),
        ("for (int w = 3; w <= static_cast<int>(lanes); ++w)", 6),
        ("for (int i = 0; i < (is_wide ? 7 : 9); i += STEP)", 5),
        ("for (int i = 5; i < 2; ++i)", 0),
        ("for (int i = 0; i < count_of(rows); ++i)", None),
        ("for (int i = 0; i < nobody_knows; ++i)", None),
        ("while (count--) {", None),
    ],
)
def test_headers_of_loops(line: str, trips: float | None) -> None:
    known = {"begin": 0, "end": 100, "lanes": 8, "block": 128, "is_wide": 0}
    names = Names(known, "constexpr int POSITIONS = 16 * STEPS, STEPS = 2, PACKS = ceil_div(62, 8); int STEP = 2;")
    assert header_trips(line, names) == trips


def test_expressions() -> None:
    names = Names({"M": 4, "flag": 0}, "constexpr int around = around + 1;")
    assert evaluate("a.M * (flag || !flag ? 3 : 5) - 7 / 2", names) == 9
    assert evaluate("max(a.M, smaller(9, 7u))", names) == 7
    assert evaluate("around", names) is None, "a name that stands for itself"
    assert evaluate("a.M / 0", names) is None


def test_costs() -> None:
    ordinary = cost_of([instruction("IADD3"), instruction("IMAD.MOV.U32"), instruction("FFMA")], "90")
    assert ordinary.instructions == 3
    assert ordinary.cycles == {"integer pipe": 2, "float pipe": 3}
    assert cost_of([instruction("IADD3")], "120").cycles["integer pipe"] == 1
    loads = cost_of([instruction("LDGSTS.E.BYPASS.128"), instruction("LDG.E.U16"), instruction("LDS.128")], "90")
    assert loads.loaded_bytes == 32 * 18
    assert loads.memory_cycles == 4 + 1 + 4
    assert cost_of([instruction("LDS", "RZ, [RZ]", "@!PT")], "90").memory_cycles == 0
    assert kind_of(instruction("HMMA.16816.F32")) == "tensor"
    assert is_spill(instruction("LDL.64")) and not is_spill(instruction("LDG.E"))
    assert is_byte_load(instruction("LDS.U8")) and not is_byte_load(instruction("LDS.U16"))


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_parameters_are_those_of_the_plan(model: object) -> None:
    for call in calls_of(MODELS[model.name], 3):  # type: ignore[attr-defined]
        folder = OPERATORS[call.operator].folder
        for kernel in plan_of(call, GPUS["H200"]).kernels:
            found = {**arguments_of(folder, kernel), **template_values(folder, kernel.name)}
            letters = call.sizes.keys() & found.keys()
            assert {name: found[name] for name in letters} == {name: call.sizes[name] for name in letters}
            assert letters or "combine" in kernel.name


def test_devices_differ() -> None:
    assert len({device.capability for device in CHECKED}) == len(CHECKED) == 7
    call = next(call for call in calls_of(MODELS["BART-large"], 8) if call.operator == "LatentAttention")
    grids = {device.name: plan_of(call, device).kernels[0] for device in CHECKED}
    assert "simt" in grids["T4"].name and "tensor_core" in grids["L4"].name
    h200 = GPUS["H200"]
    assert h200.blocks_at_once(512, 128, 200_576) == 1
    assert h200.blocks_at_once(128, 96, 36_864) == 5
    assert h200.blocks_at_once(256, 32, 0) == 8


def test_bytes_and_flops_are_those_of_the_gpu_check() -> None:
    sizes = dict(M=4, H=16, K=64)
    device, half = "cpu", torch.float16
    calls = {(call.operator, call.label): call for call in calls_of(MODELS["BART-large"], 2)}

    def same(call: OpCall, work: LatentWork | SourceWork | BeamWork) -> None:
        inputs = {"ancestry": _ancestry(work, 0)} if isinstance(work, BeamWork) else {}
        assert (call.nbytes, call.flops) == (work.bytes_moved(inputs), work.flops(inputs))

    same(calls["LatentAttention", "EL"], LatentWork(2, half, device, (0, 0), N=1024, **sizes))
    same(calls["SourceAttention", "keys and values"], SourceWork(2, half, device, (0, 0), N=1024, **sizes))
    apart = BeamWork(2, half, device, (0, 0), T=60, T_max=64, shared=False, **sizes)
    same(calls["BeamAttention", "histories apart"], apart)


def test_rows_of_a_search() -> None:
    found = shared_rows(4, 60)
    assert found.apart == 4 * 59
    work = BeamLatentWork(200, torch.float16, "cpu", (0, 0), M=4, H=2, K=2, G=1, T=60, T_max=64, shared=True)
    assert _kept_rows(_ancestry(work, 3)) / 200 == pytest.approx(found.of_search, rel=0.05)


@pytest.mark.parametrize(("tile", "N"), SHAPES.values(), ids=list(SHAPES))
def test_tiles_of_the_design_for_hopper_fit(tile: Tile, N: int) -> None:
    h200 = GPUS["H200"]
    assert sum(tile.shared_bytes.values()) <= h200.most_bytes
    assert tile.columns * tile.blocks == tile.D
    assert (tile.warpgroups * tile.registers + 40) * 128 <= 65536, "with a warpgroup of 40 registers that loads"
    assert tile.share(h200, 1, N) < tile.share(h200, 320, N) < 1


def test_budgets() -> None:
    budget = Budget(100, 50, "a reason")
    assert faults_of("kernel", Largest(100, 50.4), budget) == []
    assert faults_of("kernel", Largest(101, 51, 2, 3), budget) == [
        "kernel has 101 instructions, expected at most 100",
        "kernel has 51 instructions in a turn of its longest loop, expected at most 50",
        "kernel has 2 loads and stores of spilled registers, expected at most 0",
        "kernel has 3 byte loads from shared memory, expected at most 0",
    ]
    assert "no budget" in faults_of("new kernel", Largest(), None)[0]


def test_the_page_of_tables() -> None:
    """One table a GPU, one line a call, its batches side by side, the limit of the largest."""
    rows = [
        {"gpu": gpu, "model": "T5-base", "B": B, "operator": name, "label": "form", "floor_us": 1.25 * B}
        | {"expected": 10.4, "allowed": 20.6 + B, "limit": f"limit at {B}"}
        for gpu in ("H200", "L4")
        for B in (8, 32)
        for name in ("LatentAttention", "BeamTopK")
    ]
    text = page(rows, "abc1234")
    assert "commit abc1234" in text and "--batch 8,32\n" in text
    assert "| T5-base | 4 | 12 | 12 | 64 | 512 | 60 | 32,128 |" in text and "BART-large" not in text
    line = "| 10.0 | 10 .. 29 | 40.0 | 10 .. 53 | limit at 32 |"
    assert text.count(f"| T5-base | LatentAttention, form {line}") == text.count(f"|  | BeamTopK, form {line}") == 2
    assert "## L4\n\nCompute capability 8.9, 58 multiprocessors, 0.3 TB/s, 121 TFLOP/s." in text
