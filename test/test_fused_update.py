"""The fused kernel writes what `token_ops` write, whatever the network says; and it compiles for a Thor.

Triton settles at its import whether kernels are compiled or interpreted, for the whole process. So its interpreter has
a process of its own, which ends with this file, and the tests beside it never meet an interpreted triton.
"""

import importlib.util
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from tiny_net import whole_layout

from reflectdrive_ros.core.tokens import TokenLayout
from reflectdrive_ros.model.token import ops
from reflectdrive_ros.model.token.ops import EditRules

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

TILE = 128
DRAFT = [(limit, False, EditRules()) for limit in (0, 1, 5, 16)]
EDIT = [
    (0, True, EditRules()),
    (16, True, EditRules(at_most=1)),
    (0, True, EditRules(at_most=16)),
]


def interpret():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, which happens below


def fused(ids, logits, dtype, layout, moves):
    """What the kernel makes of arrays: ids and confidence of each move."""
    from reflectdrive_ros.model.token import fused_update

    ids, logits = torch.from_numpy(ids), torch.from_numpy(logits).to(dtype)
    outputs = []
    for limit, edit, rules in moves:
        done = fused_update.update(ids, logits, layout, torch.tensor(limit), torch.tensor(edit), rules)
        outputs.append(tuple(part.numpy() for part in done))
    return outputs


@pytest.fixture(scope="module")
def interpreter():
    with ProcessPoolExecutor(1, get_context("spawn"), interpret) as process:
        yield process


@pytest.fixture
def agrees(interpreter):
    """Both updates of ids (B, M, 16) by logits (B, M, 16, bins) in some moves: the same ids, confidences to 1e-6."""

    def agree(ids, logits, moves=(*DRAFT, *EDIT), **changes):
        layout = whole_layout(logits.shape[-1], **changes)
        theirs = interpreter.submit(fused, ids.numpy(), logits.float().numpy(), logits.dtype, layout, moves).result()
        results = []
        for (limit, edit, rules), (written, confidence) in zip(moves, theirs, strict=True):
            expected, expected_confidence = ops.update(ids, logits, layout, limit, edit, rules)
            assert torch.from_numpy(written).equal(expected), (limit, edit, rules)
            torch.testing.assert_close(torch.from_numpy(confidence), expected_confidence, atol=1e-6, rtol=0)
            results.append(expected)
        return results

    return agree


def some(bins, actions, masked, seed=0, scenes=1, scale=3.0, length=16):
    """Ids, part of them masked, and logits."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, bins, (scenes, actions, length), generator=generator)
    ids[torch.rand(ids.shape, generator=generator) < masked] = bins
    return ids, scale * torch.randn(*ids.shape, bins, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("bins", "actions"), [(21, 6), (TILE + 1, 1), (667, 1)])
def test_it_writes_what_token_ops_write(bins, actions, dtype, agrees):
    ids, logits = some(bins, actions, 0.4, seed=bins)
    written = agrees(ids, logits.to(dtype))
    counts = [int((each != ids).sum()) for each in written]
    assert 0 == counts[0] < counts[1] < counts[2] <= counts[3]
    assert min(counts[4:7]) > 0  # the edits had something to do


@pytest.mark.parametrize("masked", [0.0, 1.0])
def test_blocks_that_are_all_mask_or_hold_none(masked, agrees):
    written = agrees(*some(301, 2, masked))
    drafts, edits = written[: len(DRAFT)], written[len(DRAFT) :]
    assert [int((each == 301).sum()) for each in drafts] == ([32, 30, 22, 0] if masked else [0] * 4)
    if masked:
        assert all((each == 301).all() for each in edits)


def test_ties_go_to_the_lower_position_and_the_lower_id(agrees):
    """All equal; the same row in every position; the largest in two ids of one tile and of two."""
    ids, logits = some(301, 4, 0.5)
    logits[:, 0] = 0.0
    logits[:, 1] = logits[:, 1, :1]
    logits[:, 2:, :, [40, 41]] = 20.0
    logits[:, 3, :, [250, 290]] = 20.0
    written = agrees(ids, logits)
    assert (written[3][:, 2:][ids[:, 2:] == 301] == 40).all()
    one, masked = written[1][0, 1], ids[0, 1] == 301
    assert (one != ids[0, 1]).nonzero().tolist() == masked.nonzero()[:1].tolist()
    agrees(*some(21, 6, 0.4, scenes=2), moves=DRAFT)  # scenes of a batch
    ids, logits = some(301, 6, 0.4, seed=7)
    agrees(ids, logits.round())  # few different values, so that ties are common


def test_logits_at_the_ends_of_what_numbers_can_be(agrees):
    ids, logits = some(301, 3, 0.4)
    logits[:, 0] *= 1e4 / logits[:, 0].abs().max()
    logits[:, 1, :, :200] = ops.EXCLUDED  # the whole first tile, as what cannot be reached
    logits[:, 2, ::2] = ops.EXCLUDED  # a whole row
    logits[:, 2, 1::2, 150] = 1e4
    agrees(ids, logits)
    agrees(ids, logits.bfloat16())
    logits[:, 0, :, :200] = -float("inf")
    agrees(ids, logits)


@pytest.mark.parametrize(
    ("points", "goal"), [(8, ()), (6, (10, 11)), (6, (4, 5)), (12, ())], ids=["no goal", "12", "goal inside", "24"]
)
def test_any_layout_is_padded_to_a_power_of_two_and_its_goal_stays(points, goal, agrees):
    ids, logits = some(301, 3, 0.3, seed=points, length=2 * points)
    written = agrees(ids, logits, points=points, goal=goal)
    changed = (written[-1] != ids) & (ids != 301)
    assert changed.any()
    assert not changed[..., list(goal)].any()


@pytest.mark.parametrize("logits", ["fp32", "bf16"])
def test_it_compiles_for_a_thor(logits):
    """No GPU is needed for that; nor does it say that the kernel runs there, or how fast."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from reflectdrive_ros.model.token import fused_update

    pointers = {"ids": "*i64", "logits": f"*{logits}", "limit": "*i64", "edit": "*i1"}
    pointers |= {"written": "*i64", "confidence": "*fp32"}
    numbers = {"mask_id": "i32", "bins": "i32", "at_most": "i32"}
    numbers |= dict.fromkeys(("length", "goal_begin", "goal_end"), "i32")
    fixed = {"LENGTH": 16, "TILE": fused_update.TILE}
    source = ASTSource(fused_update.kernel, {**pointers, **numbers, **dict.fromkeys(fixed, "constexpr")}, fixed)
    target = GPUTarget("cuda", 110, 32)
    assert triton.compile(source, target, {"num_warps": fused_update.WARPS}).asm["cubin"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_on_a_gpu_it_writes_what_token_ops_write(dtype):
    from reflectdrive_ros.model.token import fused_update

    for masked in (0.0, 0.4, 1.0):
        ids, logits = (part.cuda() for part in some(667, 6, masked))
        logits = logits.to(dtype)
        for limit, edit, rules in (*DRAFT, *EDIT):
            flags = torch.tensor(limit).cuda(), torch.tensor(edit).cuda()
            written, confidence = fused_update.update(ids, logits, TokenLayout(), *flags, rules)
            expected, expected_confidence = ops.update(ids, logits, TokenLayout(), limit, edit, rules)
            assert written.equal(expected), (limit, edit, rules)
            torch.testing.assert_close(confidence, expected_confidence, atol=1e-6, rtol=0)
