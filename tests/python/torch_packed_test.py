"""Padded and packed batches of transformers' models on flashcore: what "eager" computes at the rows that count, without a note."""

import unittest
import warnings

import torch
import torch_support  # noqa: F401

import flashcore
from flashcore.torch import counters

try:
    import transformers

    import flashcore.transformers  # noqa: F401
except ImportError:
    transformers = None


def config(kind, **more):
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 vocab_size=100, max_position_embeddings=256, pad_token_id=0)  # fmt: skip
    return kind(**{**sizes, **more})


@unittest.skipUnless(transformers, "transformers does not import")
class PackedTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.ids = torch.randint(1, 100, (3, 21))

    def models(self):
        yield "llama", config(transformers.LlamaConfig)
        yield "mistral", config(transformers.MistralConfig, sliding_window=8)
        yield "gemma2", config(transformers.Gemma2Config, head_dim=16, sliding_window=8, attn_logit_softcapping=20.0)
        yield "gemma3", config(transformers.Gemma3TextConfig, head_dim=16, sliding_window=8, query_pre_attn_scalar=16, layer_types=["sliding_attention", "full_attention"])

    def both(self, model, run):
        """By flashcore, where nothing may go to PyTorch, and by "eager"."""
        results = []
        for name in ("flashcore", "eager"):
            model.set_attn_implementation(name)
            with torch.no_grad(), warnings.catch_warnings():
                if name == "flashcore":
                    warnings.simplefilter("error", flashcore.Note)
                    before = counters()
                results.append(run())
                if name == "flashcore":
                    after = counters()
                    self.assertGreater(after["computed"], before["computed"])
                    self.assertEqual(sum(after["passed_on"].values()), sum(before["passed_on"].values()), after["passed_on"])
        return results

    def test_padded_batches(self):
        for side in ("left", "right"):
            mask = torch.ones_like(self.ids)
            for row, padding in enumerate((0, 5, 13)):
                if padding:
                    mask[row, :padding] = 0 if side == "left" else 1
                    if side == "right":
                        mask[row, -padding:] = 0
            for name, of in self.models():
                with self.subTest(model=name, side=side):
                    model = transformers.AutoModelForCausalLM.from_config(of, attn_implementation="eager").eval()
                    ours, theirs = self.both(model, lambda model=model, mask=mask: model(self.ids, attention_mask=mask).logits)
                    seen = mask.bool()
                    torch.testing.assert_close(ours[seen], theirs[seen], atol=1e-4, rtol=1e-4)
                    self.assertTrue(torch.isfinite(ours).all())

    def test_generate_with_left_padding(self):
        mask = torch.ones_like(self.ids)
        mask[1, :4] = 0
        mask[2, :15] = 0
        for name, of in self.models():
            with self.subTest(model=name):
                model = transformers.AutoModelForCausalLM.from_config(of, attn_implementation="eager").eval()
                model.generation_config.pad_token_id = 0
                ours, theirs = self.both(model, lambda model=model: model.generate(self.ids, attention_mask=mask, max_new_tokens=12, do_sample=False))
                self.assertTrue(torch.equal(ours, theirs), (ours, theirs))

    def test_packed_sequences(self):
        """Three sequences in one row: each is what the model makes of it alone."""
        lengths = [5, 9, 7]
        boundaries = torch.tensor([0, 5, 14, 21], dtype=torch.int32)
        positions = torch.cat([torch.arange(n) for n in lengths])[None]
        ids = self.ids[:1]
        model = transformers.AutoModelForCausalLM.from_config(config(transformers.LlamaConfig), attn_implementation="flashcore").eval()
        given = dict(cu_seq_lens_q=boundaries, cu_seq_lens_k=boundaries, max_length_q=9, max_length_k=9)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", flashcore.Note)
            packed = model(ids, position_ids=positions, **given).logits[0]
            alone = torch.cat([model(part).logits[0] for part in ids.split(lengths, 1)])
            # A collator may fill the row up with what is of no sequence.
            filled = model(torch.cat((ids, ids[:, :3]), 1), position_ids=torch.cat((positions, positions[:, :3]), 1), **given).logits[0]
        torch.testing.assert_close(packed, alone, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(filled[:21], alone, atol=1e-4, rtol=1e-4)
        self.assertTrue(torch.isfinite(filled).all())

    def test_what_is_no_padding_goes_to_pytorch(self):
        """A hole in the middle: the positions that count do not follow each other."""
        mask = torch.ones_like(self.ids)
        mask[1, 7] = 0
        model = transformers.AutoModelForCausalLM.from_config(config(transformers.LlamaConfig), attn_implementation="flashcore").eval()
        with torch.no_grad(), warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            ours = model(self.ids, attention_mask=mask).logits
            model.set_attn_implementation("eager")
            theirs = model(self.ids, attention_mask=mask).logits
        torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], atol=1e-4, rtol=1e-4)


if __name__ == "__main__":
    unittest.main()
