from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from agentpeft.policies.models.pretrain import Float32Muon, orthogonalize

SHAPES = [(8, 8), (24, 6), (5, 40), (1, 7)]


@pytest.mark.parametrize("shape", SHAPES)
def test_directions_are_kept_and_made_as_long_as_each_other(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    found = left.T @ orthogonalize(1e-3 * matrix) @ right.T
    assert torch.allclose(found, found.diag().diag(), atol=1e-5)
    assert found.diag().min() > 0.65 and found.diag().max() < 1.25


def test_a_matrix_of_zeros_has_no_direction():
    assert not orthogonalize(torch.zeros(3, 4)).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_those_of_torch_up_to_rounding(shape):
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(shape, generator=generator)
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    words = {"lr": 0.02, "weight_decay": 0.1}
    with ThreadPoolExecutor(2) as pool:
        pairs = [
            (ours, Float32Muon([ours], pool=pool, **words)),
            (theirs, torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **words)),
        ]
        for _ in range(4):
            grad = torch.randn(shape, generator=generator)
            for weight, optimizer in pairs:
                weight.grad = grad.clone()
                optimizer.step()
    change = (theirs - start).norm()
    assert change > 0 and (ours - theirs).norm() < 0.02 * change
