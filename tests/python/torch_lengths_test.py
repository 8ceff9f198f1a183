"""A hundred random sets of lengths within the same bounds: by calls on the CPU, and on a GPU by replays of a graph that was captured once.
Packed batches, and decoding from pages with tokens that are appended before, whose table and number of sequences change too."""

import os
import random
import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2])) / "python"))
import flashcore  # noqa: E402

SETS = 100
HEADS, HEADS_KV, DIM = 4, 2, 64


def attend(q, k, v, causal):
    """[rows, heads, dim], in fp64; a row that sees no key is 0."""
    rows, keys = q.shape[0], k.shape[0]
    if keys == 0:
        return torch.zeros(rows, HEADS, DIM, dtype=torch.float64, device=q.device)
    q, k, v = q.double(), k.double().repeat_interleave(HEADS // HEADS_KV, 1), v.double().repeat_interleave(HEADS // HEADS_KV, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / DIM**0.5
    if causal:
        seen = torch.arange(keys, device=q.device) <= torch.arange(rows, device=q.device)[:, None] + (keys - rows)
        scores = scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("hij,jhd->ihd", torch.nan_to_num(scores.softmax(-1)), v)


class LengthsTest(unittest.TestCase):
    def repeated(self, device, call):
        """What runs `call` again: itself, or a graph of it."""
        call()
        if device == "cpu":
            return call
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def test_packed_batches(self):
        self.packed("cpu", torch.float32, 1e-4)

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_packed_batches_by_one_graph(self):
        self.packed("cuda", torch.bfloat16, 2e-2)

    def packed(self, device, dtype, tolerance):
        batch, most_q, most_kv, total_q, total_kv = 5, 40, 90, 140, 300
        torch.manual_seed(1)
        q, k, v = (torch.randn(total, heads, DIM, device=device, dtype=dtype) for total, heads in ((total_q, HEADS), (total_kv, HEADS_KV), (total_kv, HEADS_KV)))
        cu_q, cu_kv = (torch.zeros(batch + 1, dtype=torch.int32, device=device) for _ in range(2))
        out = torch.zeros_like(q)
        again = self.repeated(device, lambda: flashcore.varlen_attention(q, k, v, cu_q, cu_kv, most_q, most_kv, causal=True, out=out))
        rng = random.Random(1)
        for _ in range(SETS):
            ends = [[0], [0]]
            for most, total, found in ((most_q, total_q, ends[0]), (most_kv, total_kv, ends[1])):
                for _ in range(batch):
                    found.append(found[-1] + min(rng.choice((0, 1, rng.randint(0, most), most)), total - found[-1]))
            cu_q.copy_(torch.tensor(ends[0])), cu_kv.copy_(torch.tensor(ends[1]))
            out.fill_(7)
            again()
            for s in range(batch):
                rows, keys = slice(ends[0][s], ends[0][s + 1]), slice(ends[1][s], ends[1][s + 1])
                torch.testing.assert_close(out[rows].double(), attend(q[rows], k[keys], v[keys], True), atol=tolerance, rtol=tolerance, msg=lambda m: f"{ends}: {m}")  # noqa: B023
            self.assertTrue((out[ends[0][-1]:] == 7).all(), "rows that no sequence has are left as they are")

    def test_decoding_from_pages_after_appending(self):
        self.paged("cpu", torch.float32, 1e-4)

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_decoding_from_pages_after_appending_by_one_graph(self):
        self.paged("cuda", torch.bfloat16, 2e-2)

    def paged(self, device, dtype, tolerance):
        """Sequences that are not there have no row: a step of fewer sequences than the graph was captured with."""
        batch, size, most_pages, pages = 6, 8, 12, 90
        torch.manual_seed(2)
        cache = [torch.randn(pages, size, HEADS_KV, DIM, device=device, dtype=dtype) for _ in range(2)]
        q, k, v = (torch.randn(batch, heads, DIM, device=device, dtype=dtype) for heads in (HEADS, HEADS_KV, HEADS_KV))
        table = torch.arange(batch * most_pages, dtype=torch.int32, device=device).view(batch, most_pages)
        before, lengths = (torch.full((batch,), n, dtype=torch.int32, device=device) for n in (0, 1))
        cu_q = torch.arange(batch + 1, dtype=torch.int32, device=device)
        out = torch.zeros_like(q)

        def step():
            flashcore.append(k, v, *cache, before, block_table=table, cu_seqlens_new=cu_q)
            flashcore.paged_attention(q, *cache, table, lengths, cu_seqlens_q=cu_q, max_seqlen_q=1, max_seqlen_kv=most_pages * size, out=out)

        again = self.repeated(device, step)
        rng = random.Random(2)
        for _ in range(SETS):
            there = rng.randint(1, batch)
            counts = [rng.choice((1, size, size + 1, rng.randint(1, most_pages * size))) for _ in range(there)] + [0] * (batch - there)
            owned = rng.sample(range(pages), batch * most_pages)
            lengths.copy_(torch.tensor(counts)), before.copy_((lengths - 1).clamp(min=0)), table.copy_(torch.tensor(owned).view(batch, most_pages))
            cu_q.copy_(torch.tensor([min(s, there) for s in range(batch + 1)]))
            for x in (q, k, v):
                x.copy_(torch.randn(x.shape))
            out.fill_(7)
            again()
            for s in range(there):
                held = [x[table[s].long()].flatten(0, 1)[: counts[s]] for x in cache]
                for found, given in zip(held, (k, v)):
                    self.assertTrue(torch.equal(found[-1], given[s]), "what was appended is the last key")
                torch.testing.assert_close(out[s : s + 1].double(), attend(q[s : s + 1], *held, False), atol=tolerance, rtol=tolerance)
            self.assertTrue((out[there:] == 7).all())


if __name__ == "__main__":
    unittest.main()
