"""Tables of positions on other grids than their own."""

import pytest
import torch
import torch.nn.functional as F

from pyramidvit.models.pos_embed import key_rows, relative_bias, relative_logits, relative_table, resize_table


@pytest.mark.parametrize("grid", [(5,), (4, 6), (3, 4, 6)])
def test_a_table_at_its_own_size_is_itself(grid):
    table = torch.randn(*grid, 8)
    assert resize_table(table, grid) is table
    assert resize_table(table, list(grid)) is table


class Resizer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(4, 6, 8))

    def forward(self, x):
        return x + resize_table(self.table, x.shape[:2])


@pytest.mark.slow
def test_a_graph_for_any_size_takes_the_trained_size_too():
    """The exported graph interpolates always: at the table's own size that changes nothing, and no size is shut out."""
    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    net = Resizer()
    exported = torch.export.export(net, (torch.randn(5, 7, 8),), dynamic_shapes=(any_size,)).module()
    for size in ((4, 6), (9, 3)):
        x = torch.randn(*size, 8)
        torch.testing.assert_close(exported(x), net(x))


def test_equal_numbers_of_cells_are_not_equal_grids():
    """A 2x8 and a 4x4 grid have 16 cells each; the table must be resized all the same."""
    table = torch.arange(16.0).view(4, 4, 1)
    assert not torch.equal(resize_table(table, (2, 8)).flatten(), table.flatten())


@pytest.mark.parametrize(("old", "new"), [((4,), (7,)), ((4, 4), (7, 3)), ((2, 4, 4), (3, 5, 2))])
def test_resizing_keeps_what_rises_evenly(old, new):
    """Linear interpolation between cell centres: a table that rises evenly along every axis still does, away from the borders."""
    axes = [torch.arange(n) + 0.5 for n in old]
    table = torch.stack([axis / n for axis, n in zip(torch.meshgrid(*axes, indexing="ij"), old, strict=True)]).sum(0)[..., None]
    got = resize_table(table, new)
    assert got.shape == (*new, 1)
    centres = [((torch.arange(n) + 0.5) / n).clamp(0.5 / m, 1 - 0.5 / m) for n, m in zip(new, old, strict=True)]
    torch.testing.assert_close(got[..., 0], torch.stack(torch.meshgrid(*centres, indexing="ij")).sum(0))


def test_a_separable_table_is_resized_like_its_sum():
    """Space bilinear plus time linear equals their sum trilinear, which is what the paper's networks resize."""
    space, time = torch.randn(4, 5, 8), torch.randn(3, 8)
    separate = resize_table(time, (5,))[:, None, None] + resize_table(space, (7, 6))
    torch.testing.assert_close(separate, resize_table(time[:, None, None] + space, (5, 7, 6)))


@pytest.mark.parametrize(("queries", "keys"), [(8, 8), (8, 4), (8, 2), (4, 8), (7, 3), (5, 2), (1, 1), (9, 1)])
def test_relative_distances(queries, keys):
    """The distance on the finer grid, from 1 - n to n - 1; keys of a coarser grid lie that many cells apart."""
    n = max(queries, keys)
    table = torch.arange(1.0 - n, n)[:, None]
    got = relative_table(table, queries, keys)[..., 0]
    assert got.shape == (queries, keys)
    want = [[q * max(keys / queries, 1) + (keys - 1 - k) * max(queries / keys, 1) for k in range(keys)] for q in range(queries)]
    torch.testing.assert_close(got, torch.tensor(want).add(1e-4).floor() + 1 - n)


def test_a_relative_table_of_another_length_is_interpolated():
    table = torch.randn(15, 4)
    longer = F.interpolate(table.T[None], 23, mode="linear")[0].T
    assert torch.equal(relative_table(table, 12, 3), relative_table(longer, 12, 3))


@pytest.mark.parametrize(("queries", "keys"), [((4, 6), (2, 3)), ((2, 5, 7), (2, 3, 4)), ((1, 1, 1), (1, 1, 1))])
def test_decomposed_products_add_up_to_the_whole_bias(queries, keys):
    """The bias of every pair written out is the sum over axes, and queries' products with all rows, times keys' rows."""
    torch.manual_seed(0)
    B, h, d = 2, 3, 8
    q = torch.randn(B, *queries, h, d)
    tables = [torch.randn(2 * max(side) - 1, d) for side in zip(queries, keys, strict=True)]
    logits = relative_logits(q, tables, keys)
    want = torch.zeros(B, *queries, h, *keys)
    for axis, table in enumerate(tables):
        pairs = relative_table(table, queries[axis], keys[axis])  # (Q, K, d)
        place = [1] * len(queries)
        rows = pairs.view(*place[:axis], -1, *place[axis + 1 :], 1, keys[axis], d)
        products = (q.unsqueeze(-2) * rows).sum(-1)  # (B, *queries, h, K)
        want += products.view(*products.shape[:-1], *[side if i == axis else 1 for i, side in enumerate(keys)])
    want = want.flatten(1, len(queries)).flatten(3)  # (B, N, h, M)
    torch.testing.assert_close(relative_bias(logits).transpose(1, 2), want)
    torch.testing.assert_close(torch.cat(logits, -1).flatten(1, -3) @ key_rows(keys, like=q).T, want)
