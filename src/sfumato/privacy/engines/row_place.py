"""The place of a batch's rows within a tensor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Place:
    """The dimension of a tensor in which the rows of a batch lie.

    Attributes:
        dim: The dimension.
        each: Indices of that dimension that belong to one row, as after merging windows or tokens
            with the rows.
        interleaved: Whether the rows vary fastest: index i belongs to row `i % rows`, not to row
            `i // each`.
    """

    dim: int = 0
    each: int = 1
    interleaved: bool = False

    @property
    def leads(self) -> bool:
        """Tell whether the indices of a row are adjacent in the first dimension."""
        return self.dim == 0 and not self.interleaved

    def rows_first(self, t: Tensor, rows: int) -> Tensor:
        """`(rows, each, ...)`, or `(rows, ...)` where one index belongs to each row."""
        t = t.movedim(self.dim, 0)
        if self.each == 1:
            return t
        if self.interleaved:
            return t.reshape(self.each, rows, *t.shape[1:]).transpose(0, 1)
        return t.reshape(rows, self.each, *t.shape[1:])

    def leading(self, t: Tensor, rows: int) -> Tensor:
        """The tensor with the indices of each row adjacent in the first dimension."""
        if self.leads:
            return t
        first = self.rows_first(t, rows)
        return first.flatten(0, 1) if self.each > 1 else first

    def back(self, t: Tensor, rows: int) -> Tensor:
        """The inverse of `leading`, contiguous as results of operators are: views may follow."""
        if self.leads:
            return t
        if self.interleaved:
            t = t.reshape(rows, self.each, *t.shape[1:]).transpose(0, 1).flatten(0, 1)
        return t.movedim(0, self.dim).contiguous()

    def spread(self, leaf: Tensor, shape: tuple[int, ...], dims: int, views: int) -> Tensor | None:
        """A tensor per example as one that broadcasts over a batch, one slice per index.

        Args:
            leaf: `(examples, *shape)`.
            shape: Shape of the tensor that all examples share otherwise.
            dims: Number of dimensions of the batch.
            views: Rows per example.

        Returns:
            None where the shared tensor has several entries along the rows.
        """
        missing = dims - len(shape)
        if missing < 0 or (self.dim >= missing and shape[self.dim - missing] != 1):
            return None
        full = [1] * missing + list(shape)
        del full[self.dim]
        t = leaf.reshape(leaf.shape[0], *full)
        examples, copies = leaf.shape[0], views * self.each
        if copies > 1 and self.interleaved:
            t = t.view(1, examples, 1, *full).expand(self.each, -1, views, *full).flatten(0, 2)
        elif copies > 1:
            t = t.unsqueeze(1).expand(-1, copies, *full).flatten(0, 1)
        return t.movedim(0, self.dim)


def locate(two: tuple[int, ...], three: tuple[int, ...]) -> Place | None:
    """The place of rows in a tensor, from its shapes for two and for three rows.

    None where no dimension grows with the rows, or several, or one out of proportion.
    """
    grown = [dim for dim, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if len(two) != len(three) or len(grown) != 1:
        return None
    dim = grown[0]
    if two[dim] % 2 or two[dim] // 2 * 3 != three[dim]:
        return None
    return Place(dim, two[dim] // 2)
