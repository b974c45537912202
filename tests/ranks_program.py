"""What `test_ranks.py` has torchrun execute on every rank: each way to exchange something, and what one rank raises."""

from __future__ import annotations

import sys

import torch

from navrl.ranks import RankFailed, RanksSettings, connect


def main() -> None:
    with connect(RanksSettings(timeout=60.0)) as ranks:
        n, r = ranks.size, ranks.rank
        for kind in (torch.float32, torch.float64):
            numbers = torch.arange(1000, dtype=kind) * 0.1 * (r + 1)
            ranks.sum(numbers)
            expected = sum(torch.arange(1000, dtype=kind) * 0.1 * (k + 1) for k in range(n))
            assert torch.allclose(numbers, torch.as_tensor(expected), rtol=1e-6)
            copies = ranks.gather(numbers)
            assert all(torch.equal(copy, numbers) for copy in copies), "the same bits everywhere"
            assert len(copies) == (n if r == 0 else 0)
        assert ranks.most(r, -r, 5) == (n - 1, 0, 5)
        assert ranks.from_first(f"rank {r}") == "rank 0"
        first, count = ranks.share(10)
        everything = [k for share in ranks.gather(range(first, first + count)) for k in share]
        assert r or everything == list(range(10))
        mine = [torch.full((2, 3), r, dtype=torch.int32), torch.tensor(r), torch.zeros(0), torch.full((5,), r > 0)]
        for rank, theirs in enumerate(ranks.gather_tensors(mine)):
            for tensor, like in zip(theirs, mine, strict=True):
                assert tensor.dtype == like.dtype and tensor.shape == like.shape
                assert (tensor.int() == (rank > 0 if tensor.dtype == torch.bool else rank)).all()

        with ranks.together():
            pass
        assert not ranks.agreed
        try:
            with ranks.together():
                if r == n - 1:
                    raise ZeroDivisionError("one rank alone")
        except ZeroDivisionError:
            assert r == n - 1
        except RankFailed as error:
            assert r < n - 1 and error.kind == "ZeroDivisionError" and f"rank {n - 1}: " in str(error)
        assert ranks.agreed and ranks.most(r)[0] == n - 1, "all know, and can still meet"
        try:
            with ranks.together():
                raise ValueError("all of them")
        except ValueError:
            assert r == 0, "one says it"
        except RankFailed as error:
            assert r > 0 and error.kind == "ValueError"
        if r == 0:
            print(f"{n} ranks: all is well")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
